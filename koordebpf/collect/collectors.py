"""The collectors that the agent asks beside its ticks, in this order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from koordebpf.collect.collector import Collector, Schedule
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.pod_pressure import PodPressure
from koordebpf.kernel.io.loop import Loop
from koordebpf.state.series.node import NodeSeries

COLLECTORS: tuple[Callable[[NodeWatch, Loop], Collector], ...] = (PodPressure,)


def open_schedule(
    watch: NodeWatch, loop: Loop, series: NodeSeries, stack: contextlib.ExitStack, jobs: Iterable[Collector] = ()
) -> Schedule:
    """Open all of them, which the stack closes; they write into `series`. `jobs` are asked after them."""
    schedule = Schedule([*(each(watch, loop) for each in COLLECTORS), *jobs], series)
    stack.callback(schedule.close)
    return schedule
