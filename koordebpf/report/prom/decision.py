"""Metrics of what was decided and what became of it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from koordebpf.policy.evict.all_features import FEATURES
from koordebpf.state.amount import CPU, MEMORY, Amount, Unit, unit_of
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import PendingRelease
from koordebpf.units import NS_PER_S

# From half the time that is aimed at to where koordlet is: 1.1 s from the crossing, minutes of grace period.
_DECIDE_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_FREED_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class Histogram:
    """Counts of durations in fixed buckets, in seconds."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe_ns(self, duration_ns: int) -> None:
        """Count one duration."""
        duration_s = duration_ns / NS_PER_S
        self._counts[bisect_left(self._bounds_s, duration_s)] += 1
        self._sum_s += duration_s

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        """Return the metric, with cumulative buckets as Prometheus has them."""
        total = 0
        buckets = []
        for bound, count in zip((*map(str, self._bounds_s), "+Inf"), tuple(self._counts), strict=True):
            total += count
            buckets.append((bound, float(total)))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self._sum_s)


class DecisionMetrics:
    """Needs, guards, evictions and how long they took. The dictionaries are copied before they are walked."""

    def __init__(self) -> None:
        self.is_dry_run = True
        self.needs: dict[str, Amount] = {}  # feature → need of the last tick
        self.closed_guards: tuple[str, ...] = ()  # codes
        self.pending_bytes = 0
        self.exempt_bytes: Mapping[str, int] = {}  # by reason
        self.barred_pods: Mapping[str | None, int] = {}  # by problem
        self.released_bytes = 0
        self.seen_to_decided = Histogram(_DECIDE_BOUNDS_S)
        self.decided_to_freed = Histogram(_FREED_BOUNDS_S)
        self._skipped: dict[tuple[str, str], int] = {}
        self._outcomes: dict[tuple[str, str, str], int] = {}

    def record_pending(self, pending: Sequence[PendingRelease]) -> None:
        """Take over what the pods that were evicted still hold."""
        self.pending_bytes = sum(entry.credit_bytes for entry in pending if entry.failed_ns is None)
        self.barred_pods = Counter(entry.problem for entry in pending if entry.failed_ns is not None)

    def count_skipped(self, feature: str, reason: str) -> None:
        """Count one round of `feature` that was skipped; `reason` is a verdict's or guard's stable word."""
        self._skipped[feature, reason] = self._skipped.get((feature, reason), 0) + 1

    def count_outcome(self, outcome: Outcome, feature: str) -> None:
        """Count what became of one victim of a feature."""
        key = (feature, outcome.executor, outcome.result.value)
        self._outcomes[key] = self._outcomes.get(key, 0) + 1

    def expect(self, gates: Iterable[str], executor: str, *, is_dry_run: bool) -> None:
        """Show evictions of the features among these gates from 0 on: increase() does not see a series begin."""
        results = (Result.DRY_RUN,) if is_dry_run else (Result.DONE, Result.REFUSED, Result.FAILED)
        for gate in {each.name for each in FEATURES} & set(gates):
            for result in results:
                self._outcomes.setdefault((gate, executor, result.value), 0)

    def families(self) -> Iterator[Metric]:
        """Yield its metrics."""
        yield from _needs(self.needs.copy())
        yield GaugeMetricFamily(
            "koordebpf_pending_release_bytes", "Credit of evicted pods that still hold memory.", self.pending_bytes
        )
        barred = GaugeMetricFamily(
            "koordebpf_barred_pods", "Pods that still hold memory after an eviction in vain.", labels=["reason"]
        )
        for problem, count in self.barred_pods.items():
            barred.add_metric([problem or ""], count)
        yield barred
        exempt = GaugeMetricFamily(
            "koordebpf_exempt_bytes", "Memory of pods that their owners' own words spare.", labels=["reason"]
        )
        for reason, held_bytes in self.exempt_bytes.items():
            exempt.add_metric([reason], held_bytes)
        yield exempt
        yield CounterMetricFamily("koordebpf_released_bytes", "Memory freed by victims.", self.released_bytes)
        evictions = CounterMetricFamily(
            "koordebpf_evictions",
            "Victims by the feature that chose them and by outcome; each answer of a retried eviction counts.",
            labels=["reason", "executor", "result"],
        )
        for outcome, count in self._outcomes.copy().items():
            evictions.add_metric(outcome, count)
        yield evictions
        skipped = CounterMetricFamily("koordebpf_skipped_rounds", "Rounds not judged.", labels=["feature", "reason"])
        for labels, count in self._skipped.copy().items():
            skipped.add_metric(labels, count)
        yield skipped
        guards = GaugeMetricFamily("koordebpf_guard_closed", "1 for each guard that forbids acting.", labels=["reason"])
        for code in self.closed_guards:
            guards.add_metric([code], 1)
        yield guards
        yield GaugeMetricFamily("koordebpf_dry_run", "1 where nothing is ever sent.", int(self.is_dry_run))
        yield self.seen_to_decided.family(
            "koordebpf_crossing_to_decision_seconds", "From the first sight of a crossing to the plan."
        )
        yield self.decided_to_freed.family(
            "koordebpf_decision_to_freed_seconds", "From the plan to the victims' memory free again."
        )


# A family for each unit; those of memory and CPU are there before anything was judged.
def _needs(needs: Mapping[str, Amount]) -> Iterator[Metric]:
    families: dict[Unit, GaugeMetricFamily] = {}
    for resource in (MEMORY, CPU, *(need.resource for need in needs.values())):
        if (unit := unit_of(resource)) not in families:
            text = f"{resource[:1].upper()}{resource[1:]} to be freed, last tick."
            families[unit] = GaugeMetricFamily(f"koordebpf_need_{unit.metric or unit.name}", text, labels=["feature"])
    for feature, need in needs.items():
        unit = unit_of(need.resource)
        families[unit].add_metric([feature], need.value / unit.per_metric if unit.per_metric > 1 else need.value)
    yield from families.values()


class DeadManMetrics:
    """Whether it is armed, and what it did. The loop writes, scrapes read."""

    def __init__(self) -> None:
        self.is_armed = False
        self.late_stalls = 0
        self.spared = 0
        self._fired: Counter[str] = Counter()  # by mode

    def count(self, mode: str) -> None:
        """Count one time that it fired."""
        self._fired[mode] += 1

    def families(self) -> Iterator[Metric]:
        """Yield the metrics."""
        text = "Whether the dead man's switch has a pod that it would kill."
        yield GaugeMetricFamily("koordebpf_dead_man_armed", text, int(self.is_armed))
        fired = CounterMetricFamily("koordebpf_dead_man_fired", "Times that it fired, by mode.", labels=["mode"])
        for mode in ("count", "kill"):
            fired.add_metric([mode], self._fired[mode])
        yield fired
        text = "Stalls for memory of the node's tasks that ended while the heartbeat was late."
        yield CounterMetricFamily("koordebpf_dead_man_late_stalls", text, self.late_stalls)
        text = "Times that it did not fire because the node was below its threshold."
        yield CounterMetricFamily("koordebpf_dead_man_spared", text, self.spared)
