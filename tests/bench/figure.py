"""A measured figure, its percentiles, and the table and JSON they are shown in."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """One row. `reach` is what the project promises, as text; None: a comparison or for the record."""

    name: str
    unit: str
    n: int
    p50: float
    p99: float
    worst: float
    method: str
    reach: str | None = None
    reached: bool | None = None


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least `share` of all do not exceed (nearest rank)."""
    ordered = sorted(samples)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def figure(
    name: str,
    unit: str,
    samples: Sequence[float],
    method: str,
    *,
    reach_p50: float | None = None,
    reach_p99: float | None = None,
) -> Figure:
    """Return the row for `samples`."""
    p50, p99 = percentile(samples, 0.5), percentile(samples, 0.99)
    goals = (("p50", p50, reach_p50), ("p99", p99, reach_p99))
    given = [(f"{name} ≤ {limit:g}", value <= limit) for name, value, limit in goals if limit is not None]
    return Figure(
        name,
        unit,
        len(samples),
        p50,
        p99,
        max(samples),
        method,
        ", ".join(text for text, _ in given) or None,
        all(ok for _, ok in given) if given else None,
    )


def at_most(name: str, unit: str, value: float, reach: float | None, method: str) -> Figure:
    """Return the row for one value that was measured once; `reach` is the most that it may be."""
    text, ok = (None, None) if reach is None else (f"≤ {reach:g}", value <= reach)
    return Figure(name, unit, 1, value, value, value, method, text, ok)


def at_least(name: str, unit: str, value: float, reach: float | None, method: str) -> Figure:
    """Return the row for one value that was measured once; `reach` is the least that it may be."""
    text, ok = (None, None) if reach is None else (f"≥ {reach:g}", value >= reach)
    return Figure(name, unit, 1, value, value, value, method, text, ok)


def between(name: str, unit: str, samples: Sequence[float], least: float, most: float, method: str) -> Figure:
    """Return the row for `samples`, every one of which is to be at least `least` and at most `most`."""
    p50, p99 = percentile(samples, 0.5), percentile(samples, 0.99)
    reached = all(least <= each <= most for each in samples)
    text = f"each {least:g} to {most:g}, least {min(samples):.3f}"
    return Figure(name, unit, len(samples), p50, p99, max(samples), method, text, reached)


def table(figures: Sequence[Figure]) -> str:
    """Return the rows as text, the method of each below it."""
    lines = [f"{'figure':<52} {'n':>5} {'p50':>9} {'p99':>9} {'max':>9} unit  reach"]
    for row in figures:
        mark = {True: "✓", False: "✗", None: " "}[row.reached]
        lines.append(
            f"{row.name:<52} {row.n:>5} {row.p50:>9.4g} {row.p99:>9.4g} {row.worst:>9.4g} {row.unit:<5}"
            f" {mark} {row.reach or ''}"
        )
        lines.append(f"    {row.method}")
    return "\n".join(lines)
