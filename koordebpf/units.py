"""Units: the page size of this machine and text forms of quantities."""

from __future__ import annotations

import os
from datetime import UTC, datetime

PAGE_BYTES: int = os.sysconf("SC_PAGE_SIZE")
PAGE_SHIFT: int = PAGE_BYTES.bit_length() - 1
NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
NS_PER_US = 1_000
KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


def gained(now: int | None, before: int | None) -> int | None:
    """Return what a counter gained; None: it was not read twice, or ran backwards by an unknown amount.

    Its reader reports the latter: `koordebpf.kernel.io.table.Rising`.

    >>> gained(7, 5), gained(5, 7), gained(5, None)
    (2, None, None)
    """
    return None if now is None or before is None or now < before else now - before


def format_bytes(n: int) -> str:
    """Return a size for people: at most four digits and a binary unit.

    >>> format_bytes(1_932_735_283)
    '1.8 GiB'
    """
    size = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_millicpu(n: int) -> str:
    """Return an amount of CPU time for people: CPUs with at most two decimals.

    >>> format_millicpu(2_500)
    '2.5 CPUs'
    """
    return f"{n / 1000:.2f}".rstrip("0").rstrip(".") + (" CPU" if n == 1000 else " CPUs")


def format_ns(n: int) -> str:
    """Return a duration for people: three digits and a unit, or whole seconds.

    >>> format_ns(3_420_000)
    '3.42 ms'
    """
    for unit, unit_ns in (("ns", 1), ("µs", 1_000), ("ms", NS_PER_MS)):
        if abs(n) < 999.5 * unit_ns:  # else it would be rounded to 1e+03
            return f"{n / unit_ns:.3g} {unit}"
    seconds = n / NS_PER_S
    return f"{seconds:.3g} s" if abs(seconds) < 999.5 else f"{seconds:.0f} s"


def format_utc(wall_s: float) -> str:
    """Return a moment, in seconds since the epoch, as RFC 3339 in UTC with milliseconds.

    >>> format_utc(1_767_225_600.5)
    '2026-01-01T00:00:00.500Z'
    """
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
