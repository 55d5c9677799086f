"""Which pods a memory plugin chooses, and in which order. Pure.

Source: katalyst-core pkg/agent/evictionmanager/plugin/memory/helper.go.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

from koordebpf.policy.katalyst.pods import KatalystPod


class Action(enum.Enum):
    """Which pods may go."""

    RECLAIMED = "reclaimed"
    EVERY_POD = "eviction"


Held = Callable[[KatalystPod], int | None]


def memory_of(each: KatalystPod) -> int | None:
    """Return what a pod holds of the node's memory, page cache aside; None: it was not measured."""
    return each.pod.memory.held_bytes if each.pod.memory is not None else None


def ranked(pods: Iterable[KatalystPod], action: Action, held: Held, top_n: int) -> tuple[KatalystPod, ...]:
    """Return the pods to evict, the first at the front: reclaimed ones, then by priority, then the largest.

    One whose QoS level cannot be read counts as not reclaimed, and one that was not measured holds nothing: Katalyst
    puts both first. Name and UID settle ties, which Katalyst leaves to chance.

    Args:
        pods: to choose from.
        action: whether any but reclaimed ones may go.
        held: what an eviction of a pod releases, in bytes.
        top_n: at most so many; 0: all.
    """
    chosen = [each for each in pods if each.is_reclaimed or action is Action.EVERY_POD]

    def key(each: KatalystPod) -> tuple[bool, int, int, str, str, str]:
        pod = each.pod
        return not each.is_reclaimed, pod.priority or 0, -(held(each) or 0), pod.namespace, pod.name, pod.uid

    chosen.sort(key=key)
    return tuple(chosen[:top_n] if top_n else chosen)
