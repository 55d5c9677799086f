"""The pods that are known, and how long each stalled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.report.prom.bounded import OTHER, by_label
from koordebpf.report.prom.pods.budget import POD_SERIES, PodSeries
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_S


class PodMetrics:
    """Pods by state, and the stalls of those that stalled; `max_series`: what is above it is counted as `_other`."""

    def __init__(self, max_series: int = PodSeries.of(POD_SERIES).stalls) -> None:
        self.by_attribution: dict[str, int] = {}  # state → pods: attributed, without_cgroup, without_pod
        self.synced_age_s: float | None = None
        self._max_series = max_series
        self._stalls_ns: dict[tuple[str, str, str], int] = {}

    def take(self, view: NodeView) -> None:
        """Take over which pods there are."""
        attributed = sum(pod.cgroup_id is not None for pod in view.pods)
        self.by_attribution = {
            "attributed": attributed,
            "without_cgroup": len(view.pods) - attributed,
            "without_pod": len(view.measured.strays),
        }
        self.keep_only((pod.namespace, pod.name) for pod in view.pods)

    def add_stall(self, namespace: str, pod: str, scope: str, stall_ns: int) -> None:
        """Add to a pod's stalls; `scope` is global (the node's shortage) or limit (the pod's own)."""
        if not stall_ns:
            return
        key = (namespace, pod, scope)
        if key not in self._stalls_ns and sum(each[1] != OTHER for each in self._stalls_ns) >= self._max_series:
            key = ("", OTHER, scope)
        self._stalls_ns[key] = self._stalls_ns.get(key, 0) + stall_ns

    def keep_only(self, pods: Iterable[tuple[str, str]]) -> None:
        """Drop the series of every pod but these (namespace, name); the overflow stays."""
        known = {*pods, ("", OTHER)}
        self._stalls_ns = {key: ns for key, ns in self._stalls_ns.items() if key[:2] in known}

    def families(self) -> Iterator[Metric]:
        """Yield its metrics."""
        stalls = CounterMetricFamily(
            "koordebpf_pod_stall_seconds",
            "Time tasks of the pod stalled in reclaim, by whose shortage it was.",
            labels=["namespace", "pod", "scope"],
        )
        for labels, stall_ns in self._stalls_ns.copy().items():
            stalls.add_metric(labels, stall_ns / NS_PER_S)
        yield stalls
        text = "Pods by state of their attribution."
        yield by_label(GaugeMetricFamily, "koordebpf_pods", text, "state", self.by_attribution)
        if self.synced_age_s is not None:
            yield GaugeMetricFamily("koordebpf_pods_age_seconds", "Age of the pod list.", self.synced_age_s)
