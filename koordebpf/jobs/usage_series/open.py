"""Opens the series of use and of pressure where their gates are on, and loads nothing of them where they are off."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koordebpf.collect.collector import Collector
    from koordebpf.runner.context import NodeContext

log = logging.getLogger(__name__)
GATE = "PSICollector"
# Reports and predictions are worked out of the series.
GATES = ("UsageSeries", "PeakPrediction", "NodeMetricReport")


def open_pressure_series(node: NodeContext) -> Collector | None:
    """Return the collector; None: its gate is off, and nothing is loaded."""
    if not node.config.feature_gates.get(GATE, False):
        return None
    from koordebpf.jobs.usage_series.pressure import DerivedPressure, FilePressure, PressureCollector, PressureReader

    measuring = node.measuring
    watch, history = measuring.watch, measuring.history
    reader: PressureReader
    if watch.scope.hierarchy.version == 2:
        reader = FilePressure(watch.scope)
    else:
        reader = DerivedPressure(
            lambda uid: history.shares_of_pod(uid, time.monotonic_ns()),
            lambda cgroup_id: history.shares_of(cgroup_id, time.monotonic_ns()),
            lambda: watch.quality.stalls == "timed",
        )
    log.info("pressure of pods and containers is measured by %s", reader.how)
    return PressureCollector(watch.scope, watch.index, reader)


def open_usage_series(node: NodeContext) -> Collector | None:
    """Return the collector; None: no gate needs it, and nothing is loaded."""
    if not any(node.config.feature_gates.get(gate, False) for gate in GATES):
        return None
    from koordebpf.jobs.usage_series.collector import UsageCollector
    from koordebpf.jobs.usage_series.cpu import cpu_mounts
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
