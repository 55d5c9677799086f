"""The collectors that the agent asks beside its ticks, in this order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from koordebpf.collect.collector import Collector, NodeParts, Schedule
from koordebpf.collect.pod_pressure import PodPressure
from koordebpf.state.series.node import NodeSeries

COLLECTORS: tuple[Callable[[NodeParts], Collector], ...] = (PodPressure,)


def open_schedule(parts: NodeParts, series: NodeSeries, stack: contextlib.ExitStack) -> Schedule:
    """Open all of them, which the stack closes; they write into `series`."""
    schedule = Schedule([each(parts) for each in COLLECTORS], series)
    stack.callback(schedule.close)
    return schedule
