"""Collectors, each of which measures something of the node at its own period, and their schedule.

A new collector is a module with a class like `Collector` and one line in `COLLECTORS` of agent/jobs.py. What it writes
into the node's series is read there under its metric's name, as averages, percentiles and counts of any window.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from koordebpf.clock import Due
from koordebpf.errors import KoordebpfError
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
