"""Metrics of pods: their stalls, who caused them, and how many series there may be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.printable import printable
from koordebpf.report.prom.bounded import OTHER, by_label
from koordebpf.state.measured import NodeForecast, Party, TimeTo
from koordebpf.state.stalls.ledger import Charge
from koordebpf.state.view import NodeView, PodView
from koordebpf.units import NS_PER_S

POD_SERIES = 70  # Why: with the 110 to 130 of the node itself 200 series
_POD_FORECASTS = 3  # series of one forecast: low, point, high
# A client that knows a pod's UID can name it to the API server; the path of a cgroup may have one.
_UID = re.compile(r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}", re.ASCII)
UNKNOWN_POD = "_unknown"  # pods that no source knows share a series: their uids would never end


class PodSeries(msgspec.Struct, frozen=True):
    """The most series of each metric that has a pod's name in a label; what is above it is counted as `_other`."""

    stalls: int
    pairs: int
    forecast_pods: int

    @classmethod
    def of(cls, most: int) -> PodSeries:
        """Return the parts of so many series in all: the overflow of stalls and of pairs is a part of it."""
        forecast_pods = most // 5 // _POD_FORECASTS
        left = most - forecast_pods * _POD_FORECASTS
        return cls(stalls=max(0, left // 2 - 2), pairs=max(0, left - left // 2 - 1), forecast_pods=forecast_pods)


class PodMetrics:
    """Pods by state, and the stalls of those that stalled; `max_series`: what is above it is counted as `_other`."""

    def __init__(self, max_series: int = PodSeries.of(POD_SERIES).stalls) -> None:
        self.by_attribution: dict[str, int] = {}  # state → pods: attributed, without_cgroup, without_pod
        self.synced_age_s: float | None = None
        self._max_series = max_series
        self._stalls_ns: dict[tuple[str, str, str], int] = {}

    def record(self, view: NodeView) -> None:
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


class LedgerMetrics:
    """What was charged since the agent began, by victim and cause."""

    def __init__(self, max_pairs: int = PodSeries.of(POD_SERIES).pairs) -> None:
        self._max_pairs = max_pairs
        self._ns: dict[tuple[str, str], int] = {}
        self._pods: dict[tuple[str, str], frozenset[str]] = {}  # which known pods a pair is about

    def add(self, charges: Iterable[Charge]) -> None:
        """Add what was charged; a pair for which there is no room counts in the overflow series."""
        for charge in charges:
            pair = (_label(charge.victim), _label(charge.cause))
            if pair not in self._ns:
                if len(self._pods) >= self._max_pairs:
                    pair = (OTHER, OTHER)
                else:
                    parties = (charge.victim, charge.cause)
                    self._pods[pair] = frozenset(each.name for each in parties if _is_known_pod(each))
            self._ns[pair] = self._ns.get(pair, 0) + charge.ns

    def keep_pods(self, names: Iterable[str]) -> None:
        """Drop the series about pods other than these (namespace/name)."""
        known = {*names} if self._pods else set()
        for pair in [pair for pair, pods in self._pods.items() if not pods <= known]:
            del self._pods[pair], self._ns[pair]

    def families(self) -> Iterator[Metric]:
        """Yield the counter."""
        charged = CounterMetricFamily(
            "koordebpf_stall_charged_seconds",
            "Time tasks of the victim stalled for memory, by what it is charged to; _other holds more than podSeries.",
            labels=["victim", "cause"],
        )
        for labels, ns in self._ns.copy().items():
            charged.add_metric(labels, ns / NS_PER_S)
        yield charged


def forecast_families(
    node: NodeForecast | None, pods: Sequence[PodView], most_pods: int = PodSeries.of(POD_SERIES).forecast_pods
) -> Iterator[Metric]:
    """Yield the node's forecasts and those of the pods that are first. A forecast without an end has no `high`."""
    until = GaugeMetricFamily(
        "koordebpf_node_forecast_seconds", "Until the node's use reaches the mark.", labels=["mark", "bound"]
    )
    marks = (("lower", node.lower), ("threshold", node.threshold), ("oom", node.oom)) if node else ()
    for mark, forecast in marks:
        _add(until, (mark,), forecast)
    yield until
    full = GaugeMetricFamily(
        "koordebpf_pod_forecast_seconds",
        "Until the pod is full to its own limit.",
        labels=["namespace", "pod", "bound"],
    )
    soonest = sorted(((pod.forecast.point_ns, pod.key, pod) for pod in pods if pod.forecast), key=lambda each: each[:2])
    for _, _, pod in soonest[:most_pods]:
        _add(full, (pod.namespace, pod.name), pod.forecast)
    yield full


def _add(family: GaugeMetricFamily, labels: tuple[str, ...], forecast: TimeTo | None) -> None:
    if forecast is None:
        return
    for bound, ns in (("low", forecast.low_ns), ("point", forecast.point_ns), ("high", forecast.high_ns)):
        if ns is not None:
            family.add_metric((*labels, bound), ns / NS_PER_S)


def _is_known_pod(party: Party) -> bool:
    return party.kind == "pod" and party.name != party.uid


def _label(party: Party) -> str:
    return UNKNOWN_POD if party.kind == "pod" and not _is_known_pod(party) else _UID.sub("_", printable(party.name))
