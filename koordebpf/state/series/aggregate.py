"""What the samples of a window say: koordlet's aggregations, to the sample."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

Aggregation = Literal["avg", "p50", "p90", "p95", "p99", "latest", "count"]

_PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_FLOAT32: Final = struct.Struct("f")


class Aggregated(msgspec.Struct, frozen=True, gc=False):
    """All that one window says; `span_ns` is between its oldest and its newest sample."""

    count: int
    span_ns: int
    avg: float
    p50: float
    p90: float
    p95: float
    p99: float
    latest: float


def percentile_index(count: int, percentile: float) -> int:
    """Return which of so many values in ascending order koordlet takes: trunc(n · p) − 1, the first for small n.

    The product is one of 32-bit floats, as there; below 5,000 values that is n · p in whole numbers, rounded down.

    Source:  koordinator pkg/koordlet/metriccache/util.go.
    >>> percentile_index(9, 0.9), percentile_index(9, 0.5), percentile_index(1, 0.5)
    (7, 3, 0)
    """
    return max(int(_rounded(_rounded(count) * _rounded(percentile))) - 1, 0)


def aggregate(values: Sequence[float], aggregation: Aggregation) -> float | None:
    """Return what values in the order of their time say; None: there are none, which count as 0.

    Source:  koordinator pkg/koordlet/metriccache/metric_result.go.
    """
    if aggregation == "count":
        return len(values)
    if not values:
        return None
    if aggregation == "avg":
        return sum(values) / len(values)
    if aggregation == "latest":
        return values[-1]
    return sorted(values)[percentile_index(len(values), _PERCENTILES[aggregation])]


def aggregated(values: Sequence[float], span_ns: int) -> Aggregated:
    """Return every aggregation of values in the order of their time; there must be one."""
    count, ascending = len(values), sorted(values)
    p50, p90, p95, p99 = (ascending[percentile_index(count, each)] for each in _PERCENTILES.values())
    return Aggregated(count, span_ns, sum(values) / count, p50, p90, p95, p99, values[-1])


def _rounded(value: float) -> float:
    return float(_FLOAT32.unpack(_FLOAT32.pack(value))[0])
