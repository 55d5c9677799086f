"""What `koordebpf backtest` reads and prints: an agent's frames as usage over time, and the table of the result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from koordebpf.decision.frames import decode_frame
from koordebpf.errors import ConfigError, DecodeError, unreadable
from koordebpf.jobs.prediction.backtest import GOAL, Backtest, Interval, Row, Seen, series_intervals
from koordebpf.jobs.prediction.models import Usage
from koordebpf.jobs.prediction.predict import predicted_pod
from koordebpf.jobs.usage_series.snapshot import read_store
from koordebpf.state.pods.facts import PodFacts, facts_of_pods
from koordebpf.state.series.kinds import NODE_CPU, POD_CPU
from koordebpf.state.view import Frame
from koordebpf.store.frames import tick_in
from koordebpf.units import format_ns

_OTHER_PODS = "other pods"  # as one: of them only the sum of CPU was measured
_HEAD = ("of", "resource", "peak", "intervals", "exceeded", "by p50", "by at most", "beyond margin")


class Recording:
    """The usage in files of frames, one JSON line each, as --frames or `koordebpf top --frame` write them.

    `has_cpu` is whether any line tells CPU, which agents measure that suppress; it is known once all is read. A moment
    without it has a CPU usage of 0.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        """Take the files in order of time."""
        self.has_cpu = False
        self._paths = tuple(paths)
        self._facts: tuple[PodFacts, ...] = ()

    def __iter__(self) -> Iterator[Seen]:
        """Yield what each line has.

        Raises:  ConfigError: a file cannot be read, or a line is no frame; names its number.
        """
        for path in self._paths:
            try:
                with path.open("rb") as file:
                    for number, line in enumerate(file, start=1):
                        if line.endswith(b"\n"):
                            yield self._seen(_frame(line, f"{path}:{number}"))
            except OSError as error:
                raise unreadable(path, error) from error

    def _seen(self, frame: Frame) -> Seen:
        self._facts = facts_of_pods(frame.pods, self._facts)
        bands = {each.uid: predicted_pod(each).band for each in self._facts}
        measured = frame.measured
        memory = {
            each.uid: each.memory.koordinator_used_bytes for each in measured.pods if each.memory and each.uid in bands
        }
        node_bytes, usage = measured.node.used_bytes, measured.cpu.usage if measured.cpu is not None else None
        if usage is None:
            pods = {uid: Usage(0.0, size) for uid, size in memory.items()}
            return Seen(measured.now_ns, None if node_bytes is None else Usage(0.0, node_bytes), pods, bands)
        self.has_cpu = True
        cores = {each.uid: each.used_millicpu / 1000 for each in usage.pods}
        pods = {uid: Usage(cores[uid], size) for uid, size in memory.items() if uid in cores}
        if usage.other_pods is not None:
            rest = sum(size for uid, size in memory.items() if uid not in cores)
            pods[_OTHER_PODS] = Usage(usage.other_pods.used_millicpu / 1000, rest)
            bands[_OTHER_PODS] = "koord-prod"
        node = None if node_bytes is None else Usage(usage.node_used_millicpu / 1000, node_bytes)
        return Seen(measured.now_ns, node, pods, bands)


def snapshot_intervals(path: Path, every_ns: int) -> Iterator[Interval]:
    """Yield the intervals of a snapshot of an agent's series, from its first sample of the node's CPU on.

    Raises:  ConfigError: it is no snapshot.
    """
    try:
        series, moment = read_store(path)
    except OSError as error:
        raise unreadable(path, error) from error
    except DecodeError as error:
        raise ConfigError(str(path), "no snapshot", f"must be a snapshot of series: {error}") from error
    last_ns = moment.monotonic_ns
    firsts = [series.window(key, last_ns, last_ns) for key in ((NODE_CPU,), *series.keys(POD_CPU))]
    first_ns = min((each.first_ns for each in firsts if each.values), default=last_ns)
    yield from series_intervals(series, [key[1] for key in series.keys(POD_CPU)], first_ns, last_ns, every_ns)


def text_of(found: Backtest) -> str:
    """Return the result for people: a table, and a sentence on the goal."""
    lines = [
        f"{found.intervals} intervals of {format_ns(found.every_ns)}; "
        f"a model predicts after {found.warm_up} samples of its own",
        "",
    ]
    cells = [_HEAD, *map(_cells, found.rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_HEAD))]
    for row in cells:
        left = (row[0].ljust(widths[0]), row[1].ljust(widths[1]))
        right = (cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True))
        lines.append("  ".join((*left, *right)).rstrip())
    lines += ["", _verdict(found.rows)]
    return "\n".join(lines)


def _verdict(rows: Iterable[Row]) -> str:
    judged = tuple(rows)
    if not judged:
        return "nothing was predicted: the recording is too short"
    missed = [row for row in judged if not row.is_good]
    if not missed:
        return f"every peak was exceeded in at most {GOAL:.0%} of the intervals"
    worst = max(missed, key=lambda row: row.exceeded_ratio)
    return (
        f"{len(missed)} of {len(judged)} peaks were exceeded in more than {GOAL:.0%} of the intervals; most often "
        f"{worst.resource} of {worst.of}, in {worst.exceeded_ratio:.1%}, by {_percent(worst.excess_max)} at most"
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.of,
        row.resource,
        f"p{row.percent}",
        str(row.intervals),
        f"{row.exceeded_ratio:.1%}",
        _percent(row.excess_p50),
        _percent(row.excess_max),
        f"{row.with_margin_ratio:.1%}",
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _frame(line: bytes, place: str) -> Frame:
    tick = tick_in(line, place)
    return decode_frame(line, place) if tick is None else tick.frame
