"""When a node is tainted, or given a condition, because it evicts for memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from koordebpf.policy.detect.verdict import Verdict
from koordebpf.state.amount import MEMORY
from koordebpf.units import NS_PER_S


class NodeMarkSettings(msgspec.Struct, frozen=True):
    """Whether the Node says that memory is short there, so that what was evicted does not come back at once.

    `type`    with taint, koordebpf.io/memory-pressure:NoSchedule keeps every new pod away that does not tolerate it,
              latency-sensitive ones too; with condition, KoordebpfEvicting is set and the scheduler reads no
              notice. Needs source api or kubelet, enforcement, and the rights of deploy/components/node-mark. Why
              nothing: the right to change Nodes reaches every Node of the cluster.
    `calm_ns` how long after the node is below its lower mark and no victim is waited for it is removed. Why 60 s: a
              ReplicaSet has recreated the evicted pod long before, and the scheduler has sent it elsewhere.
    """

    type: Literal["nothing", "condition", "taint"] = "nothing"
    calm_ns: int = 60 * NS_PER_S


class MarkTiming(msgspec.Struct, frozen=True):
    """Whether the node is to be marked, and since when nothing has spoken for it."""

    is_on: bool = False
    calm_since_ns: int | None = None

    def after(self, *, evicted: bool, is_short: bool, awaits: bool, now_ns: int, calm_ns: int) -> MarkTiming:
        """Return it after one look at the node.

        `evicted`: an eviction for memory was sent; nothing else puts the mark on. `is_short`: `is_memory_short`.
        `awaits`: an evicted pod has not released its memory yet.
        """
        if evicted or (self.is_on and (is_short or awaits)):
            return MarkTiming(is_on=True)
        if not self.is_on:
            return self
        since_ns = now_ns if self.calm_since_ns is None else self.calm_since_ns
        return MarkTiming() if now_ns - since_ns >= calm_ns else MarkTiming(is_on=True, calm_since_ns=since_ns)


def is_memory_short(verdicts: Iterable[Verdict]) -> bool:
    """Return whether the node is above the lower mark of a feature that judges use, or one of requests fires."""
    return any(map(_is_short, verdicts))


def _is_short(verdict: Verdict) -> bool:
    use = verdict.evidence
    is_above = use is not None and use.resource == MEMORY and use.lower is not None and use.used > use.lower
    return is_above or (verdict.fires and is_for_memory(verdict))


def is_for_memory(verdict: Verdict) -> bool:
    """Return whether memory is what is short, and no other resource."""
    return verdict.is_for(MEMORY)
