"""Metrics of the node's series: how much they hold, and Koordinator's names of what was measured last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.kube.cache.objects import Pod
from koordebpf.report.series import read_window
from koordebpf.slo.strategies.host_applications import HostApplication
from koordebpf.state.series.kinds import (
    BE_CPU,
    CONTAINER_CPI,
    CONTAINER_PSI,
    HOST_APPLICATION_CPU,
    HOST_APPLICATION_MEMORY,
    NODE_CPU,
    POD_PSI,
    SeriesKey,
)
from koordebpf.state.series.store import SeriesStore
from koordebpf.units import NS_PER_S

# How old the newest sample may be. Why: koordlet's own bound; cycles are counted once a minute.
_LATEST_NS: Final = 10 * NS_PER_S
_LATEST_PSI_NS: Final = 30 * NS_PER_S
_LATEST_CPI_NS: Final = 120 * NS_PER_S
_POD: Final = ("pod_uid", "pod_name", "pod_namespace")
_CONTAINER: Final = ("container_id", "container_name", *_POD)
_PSI: Final = ("psi_resource_type", "psi_precision", "psi_degree", "cpu_full_supported")
_DEGREES: Final = ("some", "full")  # a derived pressure is none of koordlet's
_CPI_FIELDS: Final = {"cycle": "cycles", "instruction": "instructions"}
_NamedPods = dict[str, tuple[str, ...]]  # UID → UID, name, namespace
_Names = tuple[_NamedPods, dict[str, str]]  # and container id → name


class SeriesMetrics:
    """What the store holds, and koordlet's metrics of usage, each where its series has a fresh sample.

    Source:  koordinator pkg/koordlet/metrics: same names and labels.
    """

    def __init__(
        self,
        series: SeriesStore,
        pods: Callable[[], Iterable[Pod]] = tuple,
        host_applications: Callable[[], Iterable[HostApplication]] = tuple,
    ) -> None:
        """Show `series`; pods and applications, of which they have the names, are asked for at each scrape."""
        self._series = series
        self._pods = pods
        self._host_applications = host_applications

    def families(self) -> Iterator[Metric]:
        """Yield how much there is, and what there was no room for."""
        counts = self._series.counts
        yield GaugeMetricFamily("koordebpf_series", "Series of usage.", counts.series)
        yield GaugeMetricFamily("koordebpf_series_bytes", "Memory of series, without the node's own.", counts.bytes)
        for name, text, count in (
            (
                "dropped_samples",
                "Samples dropped before their window was over: series.budget was full.",
                counts.dropped_samples,
            ),
            ("dropped", "Series that had ended, dropped within their window.", counts.dropped_series),
            ("refused_samples", "Samples of series for which there was no room.", counts.refused_samples),
        ):
            yield CounterMetricFamily(f"koordebpf_series_{name}", text, count)

    def koordlet_families(self, node: str, now_ns: int) -> Iterator[Metric]:
        """Yield those with koordlet's names. Cost: 10 µs a sample, with PSI of 440 pods and containers 26 ms."""
        for name, text, key in (
            ("koordlet_node_used_cpu_cores", "CPU that the node uses.", (NODE_CPU,)),
            ("koordlet_be_suppress_be_used_cpu_cores", "CPU that best-effort pods use.", BE_CPU),
        ):
            family = _gauge(name, text)
            self._add(family, (node,), key, now_ns, _LATEST_NS)
            yield from _filled(family)
        yield from _filled(self._of_applications(node, now_ns))
        names = _names(self._pods())
        yield from _filled(self._cpi(node, names, now_ns))
        for kind, labels in ((POD_PSI, _POD), (CONTAINER_PSI, _CONTAINER)):
            yield from _filled(self._psi(kind, labels, (node, names), now_ns))

    def _of_applications(self, node: str, now_ns: int) -> GaugeMetricFamily:
        labels = ("host_application_name", "resource", "priority_class", "qos")
        family = _gauge("koordlet_host_application_resource_usage", "CPU in cores and memory in bytes.", *labels)
        for each in self._host_applications():
            for resource, kind in (("cpu", HOST_APPLICATION_CPU), ("memory", HOST_APPLICATION_MEMORY)):
                values = (node, each.name, resource, each.priority or "", each.qos or "")
                self._add(family, values, (kind, each.name), now_ns, _LATEST_NS)
        return family

    def _cpi(self, node: str, names: _Names, now_ns: int) -> GaugeMetricFamily:
        pods, containers = names
        family = _gauge("koordlet_container_cpi", "Cycles and instructions of a window.", *_CONTAINER, "cpi_field")
        for key in self._series.keys(CONTAINER_CPI):
            _, uid, container, resource = key
            if uid in pods and container in containers and resource in _CPI_FIELDS:
                values = (node, container, containers[container], *pods[uid], _CPI_FIELDS[resource])
                self._add(family, values, key, now_ns, _LATEST_CPI_NS)
        return family

    def _psi(self, kind: str, labels: tuple[str, ...], of: tuple[str, _Names], now_ns: int) -> GaugeMetricFamily:
        node, (pods, containers) = of
        family = _gauge(f"koordlet_{kind}", "PSI of the last ten seconds, in percent.", *labels, *_PSI)
        for key in self._series.keys(kind):
            _, uid, *container, resource, precision, degree = key
            if uid not in pods or degree not in _DEGREES or any(each not in containers for each in container):
                continue
            has_full = "true" if (kind, uid, *container, "cpu", precision, "full") in self._series else "false"
            names = tuple(value for each in container for value in (each, containers[each]))
            values = (node, *names, *pods[uid], resource, f"avg{precision}", degree, has_full)
            self._add(family, values, key, now_ns, _LATEST_PSI_NS)
        return family

    def _add(
        self, family: GaugeMetricFamily, labels: tuple[str, ...], key: SeriesKey, now_ns: int, window_ns: int
    ) -> None:
        if values := read_window(self._series, key, now_ns, window_ns).values:
            family.add_metric(labels, values[-1])


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["node", *labels])


def _filled(family: GaugeMetricFamily) -> Iterator[Metric]:
    if family.samples:
        yield family


def _names(pods: Iterable[Pod]) -> _Names:
    named: _NamedPods = {}
    containers: dict[str, str] = {}
    for pod in pods:
        named[pod.uid] = (pod.uid, pod.metadata.name, pod.metadata.namespace)
        status = pod.status
        for each in (*(status.containerStatuses or ()), *(status.initContainerStatuses or ())):
            containers[each.containerID.partition("://")[2]] = each.name
    return named, containers
