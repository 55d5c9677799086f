"""Work beside the ticks, each at its own period: one module a job, and one line in `JOBS`.

A job is a `Collector`: `collect` runs in the loop's thread and must return within a millisecond. What asks the API
server has a thread of its own. A module is loaded only where its job is wanted, and has `open_job`, which returns None
where the node lacks what the job needs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Protocol

from koordebpf.clock import Due
from koordebpf.collect.memory.pressure import PodPressure
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.configuration.settings import AgentConfig
from koordebpf.errors import KoordebpfError
from koordebpf.kernel.io.loop import Loop
from koordebpf.runner.context import NodeContext
from koordebpf.state.series.store import NodeSeries

log = logging.getLogger(__name__)


class Collector(Protocol):
    """Measures one thing.

    `name`      in words of a log line.
    `period_ns` between two measurements.
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - as above

    @property
    def period_ns(self) -> int: ...  # noqa: D102

    def collect(self, now_ns: int, into: NodeSeries) -> object:
        """Measure now, and append what is asked for later over a window."""

    def close(self) -> None:
        """Close every fd."""


class Schedule:
    """Asks each collector when it is due. One that fails is asked again after its period; the others continue."""

    def __init__(self, collectors: Iterable[Collector], into: NodeSeries) -> None:
        self._into = into
        self._paced = [(each, Due(each.period_ns)) for each in collectors]
        self._problems: dict[str, str] = {}  # by name, what the log has

    def run(self, now_ns: int) -> int | None:
        """Let those collect that are due; return when the next one is, None: there is none."""
        for collector, due in self._paced:
            if due.is_nearly_due(now_ns):
                due.done(now_ns)
                self._collect(collector, now_ns)
        return min((due.at_ns for _, due in self._paced), default=None)

    def close(self) -> None:
        """Close every collector."""
        for collector, _ in self._paced:
            collector.close()

    def _collect(self, collector: Collector, now_ns: int) -> None:
        problem = ""
        try:
            collector.collect(now_ns, self._into)
        except (KoordebpfError, OSError) as error:
            problem = str(error)
            if problem != self._problems.get(collector.name):
                log.warning("%s was not measured: %s", collector.name, problem)
        self._problems[collector.name] = problem


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
