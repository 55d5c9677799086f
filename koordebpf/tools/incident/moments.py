"""Rounds to the moments that plots show: of each stretch of time the one with the most memory in use. Pure.

Of one stretch every amount of memory is of the same round, so that a stack adds up. Stalls are the largest of the
stretch, and what best-effort pods may have the least: a short peak is not averaged away.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.state.balance import UNEXPLAINED, memory_parts, pods_with_swap
from koordebpf.state.measured import NodeMeasure, PodMeasure, PsiLine
from koordebpf.store.recorder.rounds import ReadRound
from koordebpf.tools.incident.ranking import RecordedDecision

_US_PER_NS = 1_000


class Moment(msgspec.Struct):
    """One point of the plots. Bytes, shares of time 0 to 1, millicpu; None: not known. Pods by UID."""

    wall_ns: int
    total_bytes: int
    used_bytes: int | None
    threshold_bytes: int | None
    lower_bytes: int | None
    growth_bytes_per_s: float | None
    held_bytes: dict[str, int]
    growths: dict[str, float]
    unexplained_bytes: int | None = None
    some_ratio: float | None = None
    full_ratio: float | None = None
    stalls: dict[str, float] = {}
    be_may_have_millicpu: int | None = None
    be_limited_millicpu: int | None = None
    be_used_millicpu: int | None = None


class _Totals(msgspec.Struct, frozen=True):
    now_ns: int
    some_us: int | None
    full_us: int | None


class Moments:
    """Takes the rounds of a window in order; `found` are the moments, the oldest first."""

    def __init__(self, first_ns: int, last_ns: int, most: int) -> None:
        self._first_ns = first_ns
        self._stretch_ns = max(1, -(-(last_ns - first_ns + 1) // most))
        self._open = -1
        self._before: _Totals | None = None
        self.found: list[Moment] = []

    def record(self, each: ReadRound, decision: RecordedDecision) -> None:
        """Take one round."""
        made = _moment(each, decision)
        now = _totals(each)
        if self._before is not None:
            made.some_ratio, made.full_ratio = _ratios(self._before, now)
        self._before = now
        stretch = (each.wall_ns - self._first_ns) // self._stretch_ns
        if stretch != self._open:
            self._open = stretch
            self.found.append(made)
        else:
            self.found[-1] = _joined(self.found[-1], made)


def _moment(each: ReadRound, decision: RecordedDecision) -> Moment:
    measured = each.tick.frame.measured
    node, memory, suppress = measured.node, decision.memory, decision.suppress
    usage = measured.cpu.usage if measured.cpu is not None else None
    parts, pods = memory_parts(measured, node.used_bytes), pods_with_swap(measured)
    return Moment(
        wall_ns=each.wall_ns,
        total_bytes=node.total_bytes,
        used_bytes=node.used_bytes,
        threshold_bytes=None if memory is None else memory.threshold,
        lower_bytes=None if memory is None else memory.lower,
        growth_bytes_per_s=node.growth_bytes_per_s,
        held_bytes={pod.uid: pod.memory.held_bytes for pod in pods if pod.memory is not None},
        growths={pod.uid: pod.growth_bytes_per_s for pod in measured.pods if pod.growth_bytes_per_s},
        unexplained_bytes=None if parts is None else max(parts[UNEXPLAINED], 0),
        stalls={pod.uid: ratio for pod in measured.pods if (ratio := _stalled(pod)) > 0},
        be_may_have_millicpu=None if suppress is None else suppress.be_millicpu,
        be_limited_millicpu=None if suppress is None else suppress.held_millicpu,
        be_used_millicpu=None if usage is None else usage.be_used_millicpu,
    )


# Stalls of the threads of a pod add up; more than all of the time is all of it.
def _stalled(pod: PodMeasure) -> float:
    stall = pod.stall
    return min(1.0, stall.total_ns / stall.window_ns) if stall is not None and stall.window_ns else 0.0


def _totals(each: ReadRound) -> _Totals:
    measured = each.tick.frame.measured
    some, full = _lines(measured.node)
    return _Totals(measured.now_ns, None if some is None else some.total_us, None if full is None else full.total_us)


def _lines(node: NodeMeasure) -> tuple[PsiLine | None, PsiLine | None]:
    if node.psi_some is None and node.shares is not None:
        return node.shares.some, node.shares.full
    return node.psi_some, node.psi_full


# None at a boot between the two, and where the kernel does not tell.
def _ratios(before: _Totals, now: _Totals) -> tuple[float | None, float | None]:
    passed_us = (now.now_ns - before.now_ns) / _US_PER_NS

    def ratio(was: int | None, is_us: int | None) -> float | None:
        if was is None or is_us is None or is_us < was or passed_us <= 0:
            return None
        return min(1.0, (is_us - was) / passed_us)

    return ratio(before.some_us, now.some_us), ratio(before.full_us, now.full_us)


def _joined(kept: Moment, other: Moment) -> Moment:
    highest, lower = (other, kept) if (other.used_bytes or 0) > (kept.used_bytes or 0) else (kept, other)
    highest.some_ratio = _most(kept.some_ratio, other.some_ratio)
    highest.full_ratio = _most(kept.full_ratio, other.full_ratio)
    highest.stalls = _most_of_each(highest.stalls, lower.stalls)
    highest.be_may_have_millicpu = _least(kept.be_may_have_millicpu, other.be_may_have_millicpu)
    highest.be_limited_millicpu = _least(kept.be_limited_millicpu, other.be_limited_millicpu)
    if highest.be_used_millicpu is None:
        highest.be_used_millicpu = lower.be_used_millicpu
    if highest.threshold_bytes is None:
        highest.threshold_bytes, highest.lower_bytes = lower.threshold_bytes, lower.lower_bytes
    return highest


def _most(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _most_of_each(into: dict[str, float], other: Mapping[str, float]) -> dict[str, float]:
    for uid, ratio in other.items():
        if ratio > into.get(uid, 0.0):
            into[uid] = ratio
    return into
