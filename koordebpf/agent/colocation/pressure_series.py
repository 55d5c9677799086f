"""The job that measures PSI of pods and containers for the node's series: koordlet's PSICollector."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koordebpf.collect.collector import Collector
    from koordebpf.runner.context import NodeContext

log = logging.getLogger(__name__)

GATE = "PSICollector"


def open_pressure_series(node: NodeContext) -> Collector | None:
    """Return the collector; None: its gate is off, and nothing is loaded."""
    if not node.config.feature_gates.get(GATE, False):
        return None
    from koordebpf.collect.usage.pressure import DerivedPressure, FilePressure, PressureCollector, PressureReader

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
