"""Times and amounts as a page writes them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from koordebpf.tools.incident.values import Unit
from koordebpf.units import format_bytes

ABSENT = "–"


def clock(at_s: float) -> str:
    """Return the time of day in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S")


def moment(at_s: float) -> str:
    """Return date and time in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def span(first_s: float, last_s: float) -> str:
    """Return from when to when."""
    same_day = datetime.fromtimestamp(first_s, UTC).date() == datetime.fromtimestamp(last_s, UTC).date()
    return f"{moment(first_s)} to {clock(last_s) + ' UTC' if same_day else moment(last_s)}"


def amount(value: float | None, unit: Unit) -> str:
    """Return a value of a chart for people.

    >>> amount(1_610_612_736, "bytes"), amount(None, "%")
    ('1.5 GiB', '–')
    """
    if value is None:
        return ABSENT
    match unit:
        case "bytes":
            return format_bytes(int(value))
        case "bytes/s":
            return f"{format_bytes(int(value))}/s"
        case "%":
            return f"{value:.1f} %"
        case "CPUs":
            return f"{value:.2f}"
        case "count":
            return str(int(value))


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number of things.

    >>> counted(1, "pod"), counted(2, "pod"), counted(0, "process", "processes")
    ('1 pod', '2 pods', '0 processes')
    """
    return f"{number} {one if number == 1 else many or one + 's'}"


def size(value: int | None) -> str:
    """Return bytes for people."""
    return amount(value, "bytes")
