"""CPU burst as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.policy.cpu_burst.strategy import BurstDecision

_NODE_STATES = ("idle", "cooling", "overload", "unknown")


class CpuBurstMetrics:
    """The loop takes decisions, scrapes read the last one."""

    def __init__(self) -> None:
        self.decision: BurstDecision | None = None  # None: not decided yet
        self.wakes = 0  # rounds that began because a container was throttled

    def families(self) -> Iterator[Metric]:
        """Yield the metrics; of containers only once something was decided."""
        yield CounterMetricFamily("koordebpf_cpu_burst_wakes", "Rounds that a throttled container began.", self.wakes)
        if (decision := self.decision) is None:
            return
        containers = GaugeMetricFamily(
            "koordebpf_cpu_burst_containers",
            "Containers above their CPU limit, those of them that get no more, and those left to another process.",
            labels=["state"],
        )
        for state in ("raised", "at_ceiling", "left"):
            containers.add_metric([state], getattr(decision, state))
        yield containers
        node = GaugeMetricFamily(
            "koordebpf_cpu_burst_node", "State of the CPUs that pods share; 1: it is this one.", labels=["state"]
        )
        for state in _NODE_STATES:
            node.add_metric([state], decision.node == state)
        yield node
