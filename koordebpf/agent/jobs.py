"""Work beside the ticks, each at its own period: one module a job, and one line in `JOBS`.

A job is a `Collector`: `collect` runs in the loop's thread and must return within a millisecond. What asks the API
server has a thread of its own. A module is loaded only where its job is wanted, and has `open_job`, which returns None
where the node lacks what the job needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module

from koordebpf.collect.collector import Collector, Schedule
from koordebpf.collect.memory.pressure import PodPressure
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.configuration.settings import AgentConfig
from koordebpf.kernel.io.loop import Loop
from koordebpf.runner.context import NodeContext
from koordebpf.state.series.store import NodeSeries


def _any_gate(*gates: str) -> Callable[[AgentConfig], bool]:
    return lambda config: any(config.feature_gates.get(gate) for gate in gates)


# Those that measure come before those that read what was measured.
JOBS: Mapping[str, Callable[[AgentConfig], bool]] = {
    "usage_series.collector": _any_gate("UsageSeries", "PeakPrediction", "NodeMetricReport"),
    "usage_series.pressure": _any_gate("PSICollector"),
    "usage_series.keeper": _any_gate("UsageSeries"),
    "hardware.cpi": _any_gate("CPICollector"),
    "hardware.gpu": _any_gate("Accelerators"),
    "hardware.cold_memory": _any_gate("ColdPageCollector"),
    "prediction.run": _any_gate("PeakPrediction"),
    "node_metric.run": _any_gate("NodeMetricReport"),
    "node_topology.run": _any_gate("NodeTopologyReport"),
    "nri.plugin": lambda config: config.nri.enabled,
    "nri.proxy": lambda config: config.runtime_proxy.enabled,
}


def open_jobs(node: NodeContext) -> list[Collector]:
    """Open those that are wanted."""
    wanted = (import_module(f"koordebpf.jobs.{name}") for name, is_wanted in JOBS.items() if is_wanted(node.config))
    return [job for each in wanted if (job := each.open_job(node)) is not None]


# What every agent has, in this order; jobs are asked after them.
COLLECTORS: tuple[Callable[[NodeWatch, Loop], Collector], ...] = (PodPressure,)


def open_schedule(
    watch: NodeWatch, loop: Loop, series: NodeSeries, stack: contextlib.ExitStack, jobs: Iterable[Collector] = ()
) -> Schedule:
    """Open all of them, which the stack closes; they and the jobs write into `series`."""
    schedule = Schedule([*(each(watch, loop) for each in COLLECTORS), *jobs], series)
    stack.callback(schedule.close)
    return schedule
