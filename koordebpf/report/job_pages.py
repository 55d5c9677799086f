"""What jobs beside the ticks show of themselves: pages, parts of /readyz, and metrics."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from koordebpf.report.health_check import HealthCheck

Families = Iterable[Metric]


class JobPages:
    """Filled when jobs are opened; a job that is opened again takes the place of the one before.

    What is called is called from the threads of the HTTP listeners.

    `pages`     by path, as /node-metric: given the query of the URL, returns what is answered as JSON on the agent's
                Unix socket.
    `checks`    by job: shown by /readyz, which does not depend on them.
    `families`  by job: shown by /metrics.
    `parts`     of strategies: checks, several of each and not always the same.
    """

    def __init__(self) -> None:
        self.pages: dict[str, Callable[[str], Any]] = {}
        self.checks: dict[str, Callable[[], HealthCheck]] = {}
        self.families: dict[str, Callable[[], Families]] = {}
        self.parts: list[Callable[[], Sequence[HealthCheck]]] = []

    def all_checks(self) -> list[HealthCheck]:
        """Return the checks of all strategies and jobs."""
        parts = itertools.chain.from_iterable(each() for each in self.parts)
        return [*parts, *(each() for each in self.checks.copy().values())]


class WithJobs(Collector):
    """What a collector shows, and then what jobs show."""

    def __init__(self, first: Collector, beside: JobPages) -> None:
        self._first = first
        self._beside = beside

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield from self._first.collect()
        for each in self._beside.families.copy().values():
            yield from each()
