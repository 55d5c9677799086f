"""The cells of `koordebpf top`'s table as text."""

from __future__ import annotations

from koordebpf.report.top.values import TopRow
from koordebpf.state.measured import TimeTo, is_mostly_kernel
from koordebpf.units import NS_PER_S, format_bytes


def time_text(left: TimeTo | None) -> str:
    """Return the point and the interval in 11 columns: `48s 40s–60s`; ∞: it may never be."""
    if left is None:
        return "-"
    if left.point_ns <= 0:
        return "now"
    high = "∞" if left.high_ns is None else _span(left.high_ns)
    return f"{_span(left.point_ns)} {_span(left.low_ns)}–{high}"


def used_text(row: TopRow) -> str:
    """Return what a row uses, in 8 columns; with K most of it is the kernel's."""
    return ("K" if is_mostly_kernel(row.kernel_bytes, row.used_bytes) else "") + bytes_text(row.used_bytes)


def growth_text(row: TopRow) -> str:
    """Return what it grows by in a second, in 8 columns."""
    return bytes_text(None if row.growth_bytes_per_s is None else round(row.growth_bytes_per_s))


def blamed(row: TopRow) -> str:
    """Return whose shortage made most of it wait: `node`, `limit`, or nothing where it did not wait."""
    if not row.global_stall_ns and not row.limit_stall_ns:
        return ""
    return "node" if row.global_stall_ns >= row.limit_stall_ns else "limit"


def some_text(row: TopRow) -> str:
    """Return its SOME% in 6 columns: ~ worked out, ≥ a lower bound, · next to nothing."""
    shares = row.shares
    mark = "~" if shares and shares.derived else ""
    at_least = "≥" if shares and shares.some_at_most else mark
    return f"{at_least}{shares.some.avg10:.1f}" if shares and shares.some.avg10 >= 0.05 else "·"


def full_text(row: TopRow) -> str:
    """Return its FULL%, as `some_text`; - is not to be known."""
    shares = row.shares
    mark = "~" if shares and shares.derived else ""
    if shares and shares.full and shares.full.avg10 >= 0.05:
        return f"{mark}{shares.full.avg10:.1f}"
    return "-" if shares and shares.full is None else "·"


def bytes_text(n: int | None) -> str:
    """Return an amount in 8 columns, - for one that is not known."""
    return "-" if n is None else f"{'-' * (n < 0)}{format_bytes(abs(n))}".replace(" ", "")


def _span(ns: int) -> str:
    # Two digits and a unit: an estimate has no more.
    for unit, unit_ns in (("s", NS_PER_S), ("m", 60 * NS_PER_S), ("h", 3600 * NS_PER_S)):
        if round(ns / unit_ns) < 100:
            return f"{round(ns / unit_ns)}{unit}"
    return f"{round(ns / (86_400 * NS_PER_S))}d"
