"""Cells of the matrix: one application beside one hog in one way, what was found, and the sum of repeats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tests.bench.figure import percentile

UNDISTURBED = ("none", "nothing")


class Found(msgspec.Struct, frozen=True):
    """What one cell gave. Latencies in ms; `served` requests a second; kills of the kernel for memory."""

    app: str
    hog: str
    way: str
    repeat: int
    n: int
    p50: float
    p99: float
    p999: float
    worst: float
    served: float
    lost: int
    ls_kills: int
    be_kills: int
    evictions: int
    be_cpu: float  # CPUs that the hog had
    waited_ms: float = 0.0  # that the application's threads waited for a CPU, in each second
    psi: dict[str, float] = {}  # share of the time in which the application waited, by resource, percent


class Sum(msgspec.Struct, frozen=True):
    """The repeats of one cell: medians, the least and largest p99.9, the largest latency, and sums of kills."""

    app: str
    hog: str
    way: str
    repeats: int
    p50: float
    p99: float
    p999: float
    p999_least: float
    p999_most: float
    worst: float
    worst_median: float
    served: float
    lost: int
    ls_kills: int
    be_kills: int
    evictions: int
    be_cpu: float
    ratio: float | None  # of p999 to that undisturbed
    ratio_least: float | None  # the same of the least p999 of each: what other work on the machine added is left out


def median(values: Iterable[float]) -> float:
    """Return the median, the mean of the two in the middle where they are an even number."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def percentiles(took_ms: Sequence[float]) -> tuple[float, float, float, float]:
    """Return p50, p99, p99.9 and the largest; a cell without an answer has infinity."""
    if not took_ms:
        return (float("inf"),) * 4
    return percentile(took_ms, 0.5), percentile(took_ms, 0.99), percentile(took_ms, 0.999), max(took_ms)


def served(took_ms: Sequence[float], lost: int, rate: float, seconds: float) -> float:
    """Return how many requests a second were answered before the end of `seconds`; those that were not come last."""
    answered = took_ms[: len(took_ms) - lost]
    return sum(number / rate + took / 1e3 <= seconds for number, took in enumerate(answered)) / seconds


def sums(found: Sequence[Found]) -> list[Sum]:
    """Return one row for each application, hog and way, in the order in which they were first found."""
    cells: dict[tuple[str, str, str], list[Found]] = {}
    for each in found:
        cells.setdefault((each.app, each.hog, each.way), []).append(each)
    base = {key[0]: [each.p999 for each in rows] for key, rows in cells.items() if key[1:] == UNDISTURBED}
    return [_sum(key, rows, base.get(key[0])) for key, rows in cells.items()]


def _sum(key: tuple[str, str, str], rows: Sequence[Found], base: Sequence[float] | None) -> Sum:
    p999 = median(each.p999 for each in rows)
    return Sum(
        *key,
        repeats=len(rows),
        p50=median(each.p50 for each in rows),
        p99=median(each.p99 for each in rows),
        p999=p999,
        p999_least=min(each.p999 for each in rows),
        p999_most=max(each.p999 for each in rows),
        worst=max(each.worst for each in rows),
        worst_median=median(each.worst for each in rows),
        served=median(each.served for each in rows),
        lost=sum(each.lost for each in rows),
        ls_kills=sum(each.ls_kills for each in rows),
        be_kills=sum(each.be_kills for each in rows),
        evictions=sum(each.evictions for each in rows),
        be_cpu=median(each.be_cpu for each in rows),
        ratio=p999 / median(base) if base else None,
        ratio_least=min(each.p999 for each in rows) / min(base) if base else None,
    )


def markdown(rows: Iterable[Sum]) -> str:
    """Return the whole table."""
    head = (
        "| app | hog | way | p50 | p99 | p99.9 (least to most) | max | ratio, of least | served/s | lost |"
        " OOM kills LS, BE | evicted | hog's CPUs |"
    )
    lines = [head, "|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        ratio = "" if row.ratio is None or row.ratio_least is None else f"{row.ratio:.2f}, {row.ratio_least:.2f}"
        lines.append(
            f"| {row.app} | {row.hog} | {row.way} | {row.p50:.2f} | {row.p99:.2f} |"
            f" {row.p999:.2f} ({row.p999_least:.2f} to {row.p999_most:.2f}) | {row.worst:.1f} | {ratio} |"
            f" {row.served:.0f} | {row.lost} | {row.ls_kills}, {row.be_kills} | {row.evictions} | {row.be_cpu:.2f} |"
        )
    return "\n".join(lines)


def short(rows: Sequence[Sum]) -> str:
    """Return a table with a row for each application and hog: p99.9 in each way, and who was killed for memory."""
    by = {(row.app, row.hog, row.way): row for row in rows}
    ways = list(dict.fromkeys(row.way for row in rows))
    lines = [f"| p99.9 in ms | undisturbed | {' | '.join(ways)} | OOM kills {', '.join(ways)} |"]
    lines.append("|---|" + "---|" * (len(ways) + 2))
    for app, hog in dict.fromkeys((row.app, row.hog) for row in rows if row.hog != "none"):
        base = by.get((app, *UNDISTURBED))
        cells = [by.get((app, hog, way)) for way in ways]
        values = [_ms(each.p999) if each else "" for each in (base, *cells)]
        kills = ", ".join(str(each.ls_kills + each.be_kills) if each else "-" for each in cells)
        lines.append(f"| {app} beside {hog} | {' | '.join(values)} | {kills} |")
    return "\n".join(lines)


def _ms(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"
