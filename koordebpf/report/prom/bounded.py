"""Numbers by labels. Where others choose these their number is bounded, and what is above it is counted together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

F = TypeVar("F", CounterMetricFamily, GaugeMetricFamily)
OTHER = "_other"


def by_label(family: type[F], name: str, text: str, label: str, values: Mapping[str, float]) -> F:
    """Return a family of label's value → number; `values` may be written by another thread meanwhile."""
    made = family(name, text, labels=[label])
    for value, number in dict(values).items():
        made.add_metric([value], number)
    return made


class BoundedCounts:
    """Counts by labels. The first label is a name that plugins or tenants choose; the others are words of ours.

    Args:
        most: different values of the first label; the rest is counted as `_other`, so that no count is lost.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: set[str] = set()
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, name: str, *words: str, by: int = 1) -> None:
        """Count so many."""
        if name not in self._names:
            if len(self._names) >= self._most:
                name = OTHER
            self._names.add(name)
        self._counts[name, *words] = self._counts.get((name, *words), 0) + by

    def items(self) -> Mapping[tuple[str, ...], int]:
        """Return a copy, from any thread."""
        return self._counts.copy()

    def family(self, name: str, text: str, labels: tuple[str, ...]) -> CounterMetricFamily:
        """Return the metric."""
        family = CounterMetricFamily(name, text, labels=labels)
        for values, count in self.items().items():
            family.add_metric(values, count)
        return family
