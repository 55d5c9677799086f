"""What a container runtime, or koord-runtime-proxy, asks as metrics, under our own names and koordlet's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from koordebpf.kube.nri.counts import BUCKETS_MS, NriCounts

# koordlet's names of what the runtime calls.
_STAGES = {
    "CreateContainer": "PreCreateContainer",
    "UpdateContainer": "PreUpdateContainerResources",
    "StateChange": "PreRunPodSandbox",
}


class NriMetrics:
    """Read at the scrape.

    Args:
        prefix: of its names, as nri.
        counts: of the server.
        is_registered: whether it is asked.
        node: for koordlet's names; None: they are left out.
        would_adjust: in a dry run, containers that would have been adjusted.
    """

    def __init__(
        self,
        prefix: str,
        counts: NriCounts,
        is_registered: Callable[[], bool],
        node: str | None,
        would_adjust: Callable[[], int],
    ) -> None:
        self._prefix = f"koordebpf_{prefix}"
        self._counts = counts
        self._is_registered = is_registered
        self._node = node
        self._would_adjust = would_adjust

    def families(self) -> Iterator[Metric]:
        """Yield the metrics."""
        counts = self._counts
        text = "1 while containers are asked for."
        yield GaugeMetricFamily(f"{self._prefix}_registered", text, int(self._is_registered()))
        text = "Registrations that were completed."
        yield CounterMetricFamily(f"{self._prefix}_registrations", text, counts.registrations)
        text = "Containers whose resources were adjusted; in a dry run those that would have been."
        adjusted = counts.adjusted + self._would_adjust()
        yield CounterMetricFamily(f"{self._prefix}_adjusted_containers", text, adjusted)
        text = "Parts of pods that could not be judged."
        yield CounterMetricFamily(f"{self._prefix}_errors", text, counts.errors)
        text = "From the whole request in the agent to its answer."
        calls = HistogramMetricFamily(f"{self._prefix}_call_seconds", text, labels=["method", "result"])
        name = "koordlet_runtime_hook_invoked_duration_milliseconds"
        text = "Invocations of runtime hooks by the container runtime."
        stages = HistogramMetricFamily(name, text, labels=["node", "hook", "stage", "status"])
        for (method, is_ok), each in counts.calls.items():
            result = "succeeded" if is_ok else "failed"
            totals = [float(count) for count in accumulate(each.buckets)]
            seconds = [str(bound / 1e3) for bound in BUCKETS_MS]
            calls.add_metric([method, result], list(zip([*seconds, "+Inf"], totals, strict=True)), each.sum_ms / 1e3)
            if self._node is not None and method in _STAGES:
                labels = [self._node, "all", _STAGES[method], result]
                bounds = [*map(str, BUCKETS_MS), "+Inf"]
                stages.add_metric(labels, list(zip(bounds, totals, strict=True)), each.sum_ms)
        yield calls
        if self._node is not None:
            yield stages
