"""How soon an agent looks again: samples, full measurements, rounds and looks at the CPUs. Reads no clock."""

from __future__ import annotations

from koordebpf.clock import Due
from koordebpf.collect.cpu.collector import CpuCollector
from koordebpf.collect.history import NodeHistory
from koordebpf.state.measured import NodeMeasure
from koordebpf.state.series.growth import next_sample_ns
from koordebpf.units import NS_PER_MS, NS_PER_S

_EXEMPT_EVERY_NS = 10 * NS_PER_S  # for metrics and a sentence alone, and PodDisruptionBudgets cost
_CPU_REST_NS = NS_PER_S  # so much later at most while memory comes back: 1 ms of 330 containers is a tenth of that pace
_WAITING_NS = 10 * NS_PER_MS  # while memory of evicted pods comes back
_AHEAD_NS = 100 * NS_PER_MS  # where `act_ahead` may soon have to act: a tenth of the seconds that are its measure
_NO_CANDIDATE_NS = 100 * NS_PER_MS  # above the threshold with no pod to evict
_HELD_NS = NS_PER_S  # above the threshold with a guard closed


class Pace:
    """Times are CLOCK_MONOTONIC nanoseconds.

    Args:
        floor_ns: samples come no faster.
        cap_ns: … and no slower.
        act_ahead_ns: how long before the crossing the agent acts; 0: never.
    """

    def __init__(self, *, floor_ns: int, cap_ns: int, act_ahead_ns: int) -> None:
        self.crossed_ns: int | None = None  # when a sample was first above the threshold; None: the last one was not
        self.round_ns = 0  # no round for memory in use before that
        self._floor_ns = floor_ns
        self._cap_ns = cap_ns
        self._act_ahead_ns = act_ahead_ns
        self._full = Due(NodeHistory.period_ns)
        self._cpu = Due(CpuCollector.period_ns)  # with every full measurement that comes by its own pace
        self._exempt = Due(_EXEMPT_EVERY_NS)
        self._was_for_cpu = False  # the last round, which set `round_ns`, was for CPU alone

    def is_full_due(self, now_ns: int) -> bool:
        """Tell whether all pods are to be measured."""
        return self._full.is_due(now_ns)

    def is_round_due(self, now_ns: int) -> bool:
        """Tell whether a shortage may be acted on."""
        return now_ns >= self.round_ns

    def want_full(self, at_ns: int) -> None:
        """Measure all pods then at the latest."""
        self._full.want(at_ns)

    def want_round(self) -> None:
        """Let the next shortage be acted on at once: another threshold, candidate or source."""
        self.round_ns = 0

    def measured(self, now_ns: int, *, is_waiting: bool) -> None:
        """Take note of a full measurement; `is_waiting`: memory may come back at any moment."""
        self._full.done(now_ns, _WAITING_NS if is_waiting else None)

    def poll_cpu(self, now_ns: int, *, is_waiting: bool) -> bool:
        """Tell whether the CPUs are to be measured; if so, that counts as done."""
        if not self._cpu.is_nearly_due(now_ns - (_CPU_REST_NS if is_waiting else 0)):
            return False
        self._cpu.done(now_ns)
        return True

    def poll_exempt(self, now_ns: int) -> bool:
        """Tell the same of memory that exemptions keep from eviction."""
        if not self._exempt.is_due(now_ns):
            return False
        self._exempt.done(now_ns)
        return True

    def sampled(self, node: NodeMeasure, threshold: int | None, now_ns: int, seen_ns: int) -> bool:
        """Take note of a sample; tell whether it is above the threshold.

        Args:
            node: as sampled.
            threshold: bytes; None: there is none.
            now_ns: begin of the tick.
            seen_ns: when the sample was there.
        """
        if threshold is not None and self._may_act_ahead(node, threshold):
            self.want_full(now_ns + _AHEAD_NS)
        is_above = threshold is not None and node.known_used_bytes >= threshold
        if not is_above:
            self.crossed_ns = None
        elif self.crossed_ns is None:
            self.crossed_ns = seen_ns
            if self._was_for_cpu:
                self.want_round()
        return is_above

    def round_began(self, *, for_cpu: bool) -> None:
        """Take note of what a round is for."""
        self._was_for_cpu = for_cpu

    def no_victim(self, decided_ns: int, *, is_waiting: bool) -> None:
        """Take note of a round without a victim."""
        self.round_ns = decided_ns + (_WAITING_NS if is_waiting else _NO_CANDIDATE_NS)

    def carried_out(self, decided_ns: int, *, is_acting: bool, is_held: bool, cool_time_ns: int) -> None:
        """Take note of a round with victims: something was sent, or a guard held them, or neither."""
        # Nothing was sent, so nothing changes by itself: the same plan each few milliseconds would say nothing new.
        self.round_ns = decided_ns + (_HELD_NS if is_held else cool_time_ns)
        if is_acting:
            self._full.done(decided_ns, _WAITING_NS)
            self.round_ns = decided_ns + _WAITING_NS

    def due_ns(
        self, now_ns: int, then_ns: int, node: NodeMeasure, threshold: int | None, *,
        is_above: bool, is_waiting: bool, cpus: int,
    ) -> int:  # fmt: skip
        """Return when the next tick is due at the latest; `then_ns` is the end of this one."""
        return min(
            now_ns + self._sample_ns(then_ns, node, threshold, is_above, is_waiting, cpus),
            max(self._full.at_ns, now_ns),
        )

    def _sample_ns(
        self, then_ns: int, node: NodeMeasure, threshold: int | None, is_above: bool, is_waiting: bool, cpus: int
    ) -> int:
        if threshold is None:
            return self._cap_ns
        if is_above:
            return min(max(self.round_ns - then_ns, self._floor_ns), self._cap_ns)
        if is_waiting:
            return _WAITING_NS
        headroom, growth = threshold - node.known_used_bytes, node.growth_bytes_per_s
        return next_sample_ns(headroom, growth, cpus=cpus, floor_ns=self._floor_ns, cap_ns=self._cap_ns)

    # Whether the crossing is near enough to look at the forecast, which only a full measurement has.
    def _may_act_ahead(self, node: NodeMeasure, threshold: int) -> bool:
        growth = node.growth_bytes_per_s or 0.0
        if growth <= 0 or not self._act_ahead_ns:
            return False
        return (threshold - node.known_used_bytes) / growth * NS_PER_S < 2 * self._act_ahead_ns
