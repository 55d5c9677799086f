"""A detector's answer and its reasons."""

from __future__ import annotations

import msgspec


class Evidence(msgspec.Struct, frozen=True):
    """The numbers a verdict rests on. Bytes; percents as configured."""

    capacity_bytes: int
    used_bytes: int
    used_percent: int  # floor(used · 100 / capacity), Koordinator's integer rule
    threshold_percent: int | None = None
    lower_percent: int | None = None
    threshold_bytes: int | None = None  # smallest usage that fires
    lower_bytes: int | None = None


class Verdict(msgspec.Struct, frozen=True):
    """Whether a condition holds. `reason` is one sentence with both numbers, also where it does not fire.

    `skipped` is set (a short stable word for metrics) when the condition could not or must not be judged.
    """

    feature: str
    fires: bool
    reason: str
    need_bytes: int = 0  # to give back to reach the lower mark; 0 unless it fires
    koordinator_need_bytes: int = 0  # by Koordinator's floored percent, for comparison
    skipped: str | None = None
    evidence: Evidence | None = None
