"""The ledger and the forecasts as metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.printable import printable
from koordebpf.report.prom.bounded import OTHER
from koordebpf.report.prom.pods.budget import POD_SERIES, PodSeries
from koordebpf.state.measured import NodeForecast, Party, TimeTo
from koordebpf.state.stalls.ledger import Charge
from koordebpf.state.view import PodView
from koordebpf.units import NS_PER_S

# A client that knows a pod's UID can name it to the API server; the path of a cgroup may have one.
_UID = re.compile(r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}", re.ASCII)
UNKNOWN_POD = "_unknown"  # pods that no source knows share a series: their uids would never end


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
