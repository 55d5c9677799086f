"""The job that measures usage for the node's series; opened once, where a feature gate needs them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koordebpf.collect.collector import Collector
    from koordebpf.runner.context import NodeContext

log = logging.getLogger(__name__)

# Reports and predictions are worked out of the series.
GATES = ("UsageSeries", "PeakPrediction", "NodeMetricReport")


def open_usage_series(node: NodeContext) -> Collector | None:
    """Return the collector; None: no gate needs it, and nothing is loaded."""
    if not any(node.config.feature_gates.get(gate, False) for gate in GATES):
        return None
    from koordebpf.collect.usage.collector import UsageCollector
    from koordebpf.collect.usage.cpu import cpu_mounts
    from koordebpf.kernel.cgroup.hierarchy import ControllerMount, find_controllers

    measuring = node.measuring
    scope = measuring.watch.scope
    memory = ControllerMount(scope.hierarchy.version, scope.hierarchy.mount_point)
    collector = UsageCollector(
        scope,
        measuring.watch.index,
        measuring.collector,
        cpu_mounts(find_controllers(), memory),
        lambda: measuring.known.host_applications,
        with_page_cache=node.config.usage.page_cache,
    )
    log.info("usage of pods and containers is measured by %s", collector.counters.how)
    return collector
