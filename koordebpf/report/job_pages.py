"""What jobs show of themselves: pages, metrics, and parts of /readyz, which does not depend on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from koordebpf.units import NS_PER_S

Families = Iterable[Metric]


class HealthCheck(msgspec.Struct, frozen=True):
    """What a part said last. `at_ns` None: nothing yet; `max_silence_ns`: after that it counts as failing."""

    name: str
    problem: str | None
    at_ns: int | None
    max_silence_ns: int

    def failure(self, now_ns: int) -> str | None:
        """Return why it does not work, as a sentence; None: it does."""
        if self.at_ns is None:
            return self.problem or "no answer yet"
        silence_ns = now_ns - self.at_ns
        if silence_ns > self.max_silence_ns:
            longest = f"{self.max_silence_ns / NS_PER_S:g} s"
            return f"no answer for {silence_ns / NS_PER_S:.0f} s > {longest}"
        return self.problem


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
