"""`Incident`: all that a page shows, as one value, and how times and amounts are written. Pure.

Times are seconds since the epoch, wall clock. None is "not known". Names are as tenants wrote them: whatever renders
them escapes them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import msgspec

from koordebpf.units import format_bytes

ABSENT = "–"
Unit = Literal["bytes", "bytes/s", "%", "CPUs", "count"]
# area: of a stack, from below. line: a measurement. mark: a threshold, drawn dashed.
Style = Literal["area", "line", "mark"]
MarkKind = Literal["decision", "oom", "back", "gap"]


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


class Series(msgspec.Struct, frozen=True):
    """One name and its values, one for each moment of the chart; None: not measured then."""

    name: str
    style: Style
    values: tuple[float | None, ...]


class Chart(msgspec.Struct, frozen=True):
    """One plot. `id` is a word for anchors; `note` says what the values are, for people."""

    id: str
    title: str
    unit: Unit
    times_s: tuple[float, ...]
    series: tuple[Series, ...]
    note: str


class Mark(msgspec.Struct, frozen=True):
    """A moment that every plot shows as a line."""

    at_s: float
    kind: MarkKind
    text: str


class HeatMap(msgspec.Struct, frozen=True):
    """What each victim stalled on account of each cause. `ns[i][j]`: victim i by cause j; 0: nothing was charged.

    `covers` says in words over which time it is summed.
    """

    victims: tuple[str, ...]
    causes: tuple[str, ...]
    ns: tuple[tuple[int, ...], ...]
    covers: str


class RankedPod(msgspec.Struct, frozen=True):
    """One pod at one decision. `rank` None: it was no candidate. `is_victim`: it was chosen; `why` has the reason.

    Amounts are bytes of memory, and `caused_ns` what latency-sensitive pods stalled on its account.
    """

    pod: str
    rank: int | None
    is_victim: bool
    why: str
    priority: int | None = None
    used_bytes: int | None = None
    credit_bytes: int | None = None
    growth_bytes_per_s: float | None = None
    caused_ns: int | None = None


class FeatureRanking(msgspec.Struct, frozen=True):
    """What one feature judged at a decision, and each pod of it. `left_out`: so many more pods have no row."""

    feature: str
    reason: str
    rows: tuple[RankedPod, ...]
    left_out: int


class DecisionShown(msgspec.Struct, frozen=True):
    """One decision, or as many alike in a row: the same victims. `outcomes` are sentences.

    `times` is how many there were, `last_s` when the last one was. `rankings` are of the first.
    """

    at_s: float
    last_s: float
    times: int
    sentence: str
    victims: tuple[str, ...]
    is_dry_run: bool
    outcomes: tuple[str, ...] = ()
    rankings: tuple[FeatureRanking, ...] = ()
    latencies: str = ""


class Returned(msgspec.Struct, frozen=True):
    """One pod whose memory was to come back. `after_ns` since the decision; None: it was not seen to come back."""

    pod: str
    evicted_s: float | None
    credit_bytes: int | None
    back_s: float | None
    after_ns: int | None
    note: str


class Happened(msgspec.Struct, frozen=True):
    """One line of the timeline."""

    at_s: float
    kind: str  # a word or two
    text: str


class Fact(msgspec.Struct, frozen=True):
    """A name and its value, for the part about the node."""

    name: str
    value: str


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `missing` are sentences that say what the source does not have."""

    node: str
    source: str  # the file or folder, as it was named
    kind: Literal["recording", "audit"]
    first_s: float
    last_s: float
    summary: str
    charts: tuple[Chart, ...] = ()
    marks: tuple[Mark, ...] = ()
    heat: HeatMap | None = None
    decisions: tuple[DecisionShown, ...] = ()
    returned: tuple[Returned, ...] = ()
    timeline: tuple[Happened, ...] = ()
    facts: tuple[Fact, ...] = ()
    signals: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
