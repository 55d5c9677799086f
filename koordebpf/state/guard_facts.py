"""The facts that guards judge, and a guard that is closed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.view import FINISHED_PHASES
from koordebpf.units import NS_PER_S

# Of Koordinator's chart. In another namespace anyone who may create pods could give a pod this label.
NAMESPACE = "koordinator-system"
LABEL, NAME = "koord-app", "koordlet"
LOSS_WINDOW_NS = 10 * NS_PER_S  # lost records close a guard for this long


def koordlet_pod(pods: Iterable[PodFacts]) -> str | None:
    """Return koordlet's pod on this node as namespace/name; None: there is none."""
    for pod in pods:
        labels = pod.pod.metadata.labels or {}
        if pod.namespace == NAMESPACE and labels.get(LABEL) == NAME and pod.phase not in FINISHED_PHASES:
            return pod.pod.key
    return None


class GuardFacts(msgspec.Struct, frozen=True):
    """What the guards look at.

    `pods_synced_ns` None: no view of pods yet. `records` and `lost_records` count within the last
    `LOSS_WINDOW_NS` at most. `clock_jump_ns` is how far CLOCK_BOOTTIME − CLOCK_MONOTONIC moved since the last rescan; a
    stepped wall clock moves neither and does no harm.
    """

    now_ns: int
    source: Literal["api", "kubelet", "file"]
    pods_synced_ns: int | None
    source_problem: str | None = None  # the source cannot be read now
    records: int = 0
    lost_records: int = 0
    clock_jump_ns: int = 0
    running_pods: int = 0
    running_pods_without_cgroup: int = 0
    useless_evictions: int = 0  # in a row
    useless_ns: int | None = None  # when the last of them was judged
    node_problem: str | None = None  # why it is not known how full the node is


class ClosedGuard(msgspec.Struct, frozen=True):
    """One reason not to act; `code` is a stable word for metrics."""

    code: str
    sentence: str
