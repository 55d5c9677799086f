"""Moments to plots: the largest pods by name, the others as one sum. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from koordebpf.tools.incident.moments import Moment
from koordebpf.tools.incident.values import Chart, Series
from koordebpf.units import NS_PER_S

NAMED = 10  # pods of a stack. Why: more colours than these cannot be distinguished
_LINES = 6  # pods of a plot of lines
_GAP_NS = 20 * NS_PER_S  # Why: the slowest pace is a round each 5 s
_GAP_OF_STEPS = 5

Value = float | None


def charts_of(moments: Sequence[Moment], names: Mapping[str, str], victims: Iterable[str]) -> tuple[Chart, ...]:
    """Return the plots that have anything to show.

    Args:
        moments: the oldest first.
        names: of pods by UID, as namespace/name.
        victims: UIDs of pods that have a name in the stack, however small they are.
    """
    points = with_gaps(moments)
    times = tuple(round(at_ns / NS_PER_S, 3) for at_ns, _ in points)
    rows = [each for _, each in points]
    made = (
        _memory(rows, times, names, victims),
        _stalls(rows, times, names),
        _growth(rows, times, names),
        _suppression(rows, times),
    )
    return tuple(each for each in made if each is not None)


def with_gaps(moments: Sequence[Moment]) -> list[tuple[int, Moment | None]]:
    """Return moments with their times, and a None where none was recorded for long, so that no line is drawn there."""
    steps = sorted(after.wall_ns - before.wall_ns for before, after in pairwise(moments))
    gap_ns = max(_GAP_NS, _GAP_OF_STEPS * steps[len(steps) // 2]) if steps else _GAP_NS
    points: list[tuple[int, Moment | None]] = []
    for each in moments:
        if points and each.wall_ns - points[-1][0] > gap_ns:
            points.append(((points[-1][0] + each.wall_ns) // 2, None))
        points.append((each.wall_ns, each))
    return points


def _values(rows: Sequence[Moment | None], of: Callable[[Moment], Value]) -> tuple[Value, ...]:
    return tuple(None if each is None else of(each) for each in rows)


# Nothing is noted of a pod that does not stall or grow; of one that was not there nothing is known.
def _of_pod(rows: Sequence[Moment | None], uid: str, of: Callable[[Moment], Mapping[str, float]]) -> tuple[Value, ...]:
    return _values(rows, lambda each: of(each).get(uid, 0.0) if uid in each.held_bytes else None)


def _memory(
    rows: Sequence[Moment | None], times: tuple[float, ...], names: Mapping[str, str], victims: Iterable[str]
) -> Chart | None:
    known = [each for each in rows if each is not None]
    if not any(each.used_bytes is not None or each.held_bytes for each in known):
        return None
    largest = _largest(known, lambda each: each.held_bytes)
    kept = set([uid for uid in dict.fromkeys(victims) if uid in largest][: NAMED // 2])
    kept.update([uid for uid in largest if uid not in kept][: NAMED - len(kept)])
    series = [
        Series(name_of(uid, names), "area", _of_pod(rows, uid, lambda each: each.held_bytes))
        for uid in largest
        if uid in kept
    ]
    if others := len(largest) - len(kept):
        series.append(
            Series(
                "1 other pod" if others == 1 else f"{others} other pods",
                "area",
                _values(rows, lambda each: sum(held for uid, held in each.held_bytes.items() if uid not in kept)),
            )
        )
    series.append(Series("outside of pods", "area", _values(rows, _outside)))
    series.append(Series("node, in use", "line", _values(rows, lambda each: each.used_bytes)))
    series += _marks(rows)
    note = (
        "Memory that each pod would release: its processes', what cannot be reclaimed, and the kernel's for it;"
        " page cache is left out. Of each stretch of time the moment with the most in use."
    )
    return Chart("memory", "Memory by pod", "bytes", times, tuple(series), note)


def _outside(each: Moment) -> Value:
    return None if each.used_bytes is None else max(0, each.used_bytes - sum(each.held_bytes.values()))


def _marks(rows: Sequence[Moment | None]) -> list[Series]:
    made = [
        Series("threshold", "mark", _values(rows, lambda each: each.threshold_bytes)),
        Series("lower mark", "mark", _values(rows, lambda each: each.lower_bytes)),
    ]
    return [each for each in made if _has_any(each)]


def _stalls(rows: Sequence[Moment | None], times: tuple[float, ...], names: Mapping[str, str]) -> Chart | None:
    of_node = [
        Series("node, some task stalls", "line", _values(rows, lambda each: _percent(each.some_ratio))),
        Series("node, every task stalls", "line", _values(rows, lambda each: _percent(each.full_ratio))),
    ]
    shown = _with_pods(of_node, rows, names, lambda each: each.stalls, _percent)
    note = (
        "Share of the time in which tasks wait for memory; of pods the sum of their timed waits, at most 100 %. Of each"
        " stretch of time the largest."
    )
    return Chart("stalls", "Stalls", "%", times, shown, note) if shown else None


def _growth(rows: Sequence[Moment | None], times: tuple[float, ...], names: Mapping[str, str]) -> Chart | None:
    of_node = [Series("node", "line", _values(rows, lambda each: _whole(each.growth_bytes_per_s)))]
    shown = _with_pods(of_node, rows, names, lambda each: each.growths, _whole)
    note = (
        "How fast memory in use grows: of the node, and of the pods that grew fastest. Below zero it shrinks;"
        " where that is faster than anything grew it is cut off."
    )
    return Chart("growth", "Growth", "bytes/s", times, shown, note) if shown else None


# Lines of the node, and of the pods whose peaks are highest; those that have a value.
def _with_pods(
    of_node: Sequence[Series],
    rows: Sequence[Moment | None],
    names: Mapping[str, str],
    of: Callable[[Moment], Mapping[str, float]],
    shown_as: Callable[[Value], Value],
) -> tuple[Series, ...]:
    largest = _largest([each for each in rows if each is not None], of)[:_LINES]
    of_pods = [Series(name_of(uid, names), "line", tuple(map(shown_as, _of_pod(rows, uid, of)))) for uid in largest]
    return tuple(each for each in (*of_node, *of_pods) if _has_any(each))


def _suppression(rows: Sequence[Moment | None], times: tuple[float, ...]) -> Chart | None:
    series = (
        Series("best-effort pods may have", "mark", _values(rows, lambda each: _cpus(each.be_may_have_millicpu))),
        Series("limited to", "line", _values(rows, lambda each: _cpus(each.be_limited_millicpu))),
        Series("used by best-effort pods", "line", _values(rows, lambda each: _cpus(each.be_used_millicpu))),
    )
    shown = tuple(each for each in series if _has_any(each))
    note = (
        "CPUs that the others leave best-effort pods, what they are limited to, by CPUs or a quota, and what they"
        " use. Below zero the others use more than the threshold allows."
    )
    return Chart("suppression", "CPU suppression", "CPUs", times, shown, note) if shown else None


# By the peak, the largest first.
def _largest(rows: Iterable[Moment], of: Callable[[Moment], Mapping[str, float]]) -> list[str]:
    peaks: dict[str, float] = {}
    for each in rows:
        for uid, value in of(each).items():
            if value > peaks.get(uid, 0.0):
                peaks[uid] = value
    return sorted(peaks, key=lambda uid: (-peaks[uid], uid))


def name_of(uid: str, names: Mapping[str, str]) -> str:
    """Return a pod's name; of one that no source knows its UID."""
    return names.get(uid) or f"pod {uid}"


def _has_any(series: Series) -> bool:
    return any(value is not None for value in series.values)


def _percent(ratio: float | None) -> Value:
    return None if ratio is None else round(100 * ratio, 2)


def _whole(value: float | None) -> Value:
    return None if value is None else round(value)


def _cpus(millicpu: int | None) -> Value:
    return None if millicpu is None else millicpu / 1000
