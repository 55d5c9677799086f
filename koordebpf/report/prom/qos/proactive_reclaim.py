"""Proactive reclaim as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.policy.proactive_reclaim.strategy import ReclaimDecision
from koordebpf.policy.proactive_reclaim.trim import WHYS


class ReclaimMetrics:
    """What was taken, and whom it has hurt. The loop writes, scrapes read."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()  # bytes by result
        self._hurt = 0
        self._held = 0
        self._pods = 0
        self._whys: Counter[str] = Counter()  # pods by why so much is taken from them

    def take(self, made: ReclaimDecision) -> None:
        """Take over a decision."""
        self._hurt += len(made.hurt)
        self._held += made.held_by is not None
        self._pods = len(made.state.pods)
        self._whys = Counter(made.whys.values())

    def count(self, result: str, size_bytes: int) -> None:
        """Count what became of one job."""
        self._taken[result] += size_bytes

    def families(self) -> Iterator[Metric]:
        """Yield the metrics."""
        taken = CounterMetricFamily(
            "koordebpf_proactive_reclaim_bytes", "Memory that pods were asked to give, by result.", labels=["result"]
        )
        for result, size_bytes in sorted(self._taken.copy().items()):
            taken.add_metric([result], size_bytes)
        yield taken
        text = "Times that a pod stalled for it, or its memory came back."
        yield CounterMetricFamily("koordebpf_proactive_reclaim_hurt_pods", text, self._hurt)
        text = "Rounds in which nothing was taken because a latency-sensitive pod stalled."
        yield CounterMetricFamily("koordebpf_proactive_reclaim_held_rounds", text, self._held)
        yield GaugeMetricFamily("koordebpf_proactive_reclaim_pods", "Pods that may be trimmed.", self._pods)
        pods = GaugeMetricFamily(
            "koordebpf_proactive_reclaim_pods_by_reason", "The same by what was decided of them.", labels=["reason"]
        )
        whys = self._whys.copy()
        for why in WHYS:
            pods.add_metric([why], whys[why])
        yield pods
