"""Counts by labels that others choose: their number is bounded, and what is above it is counted together."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily

OTHER = "_other"


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
