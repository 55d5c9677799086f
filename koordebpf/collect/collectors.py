"""The collectors that the agent asks beside its ticks, in this order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from koordebpf.collect.collector import Collector, NodeParts, Schedule
from koordebpf.collect.pod_pressure import PodPressure
from koordebpf.state.series.node import NodeSeries

COLLECTORS: tuple[Callable[[NodeParts], Collector], ...] = (PodPressure,)


def open_schedule(
    parts: NodeParts, series: NodeSeries, stack: contextlib.ExitStack, jobs: Iterable[Collector] = ()
) -> Schedule:
    """Open all of them, which the stack closes; they write into `series`. `jobs` are asked after them."""
    schedule = Schedule([*(each(parts) for each in COLLECTORS), *jobs], series)
    stack.callback(schedule.close)
    return schedule
