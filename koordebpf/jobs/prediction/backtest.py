"""How often and by how much use exceeded the peak that had been predicted for it, on a recording. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, Literal

import msgspec

from koordebpf.jobs.prediction.models import BAND_UIDS, NO_BAND, NODE_UID, SYSTEM_UID, Models, Usage
from koordebpf.jobs.prediction.predict import node_samples, node_usage, peak_of, pod_usage, trained, with_margin
from koordebpf.jobs.prediction.values import PredictionSettings
from koordebpf.state.prediction import Amounts
from koordebpf.state.series.kinds import NODE_CPU, NODE_MEMORY, POD_CPU, POD_MEMORY
from koordebpf.state.series.store import NodeSeries, node_series

GOAL: Final = 0.05  # share of intervals in which a peak may be exceeded

ResourceName = Literal["cpu", "memory"]
_PODS: Final = "pods"
_NAMES: Final[Mapping[str, str]] = {
    NODE_UID: "node",
    SYSTEM_UID: "system",
    **{uid: band or "no band" for band, uid in BAND_UIDS.items()},
}


class Seen(msgspec.Struct, frozen=True):
    """What a recording has of one moment.

    `now_ns` of CLOCK_MONOTONIC. `bands` of every pod on the node, `pods` of those that were measured, both by UID.
    """

    now_ns: int
    node: Usage | None
    pods: Mapping[str, Usage]
    bands: Mapping[str, str]


class Interval(msgspec.Struct, frozen=True):
    """The samples of one training, by the UID of their models; `end_ns` is that of the interval they are of."""

    end_ns: int
    samples: Mapping[str, Usage]


class Row(msgspec.Struct, frozen=True):
    """What came of the predictions of one resource of one part of the node.

    `of`              pods (each with its own model, counted together), a band of priority, system or node.
    `percent`         share of samples below the peak, by setting.
    `intervals`       in which there was a prediction.
    `exceeded_ratio`  of them, in which more was used than the peak; `with_margin_ratio`: than the peak and the margin.
    `excess_p50`      by how much, as a share of the peak, in half of those; `excess_max`: at most. None: never.
    """

    of: str
    resource: ResourceName
    percent: int
    intervals: int
    exceeded_ratio: float
    with_margin_ratio: float
    excess_p50: float | None
    excess_max: float | None

    @property
    def is_good(self) -> bool:
        """The peak was exceeded in at most a twentieth of the intervals."""
        return self.exceeded_ratio <= GOAL


class Backtest(msgspec.Struct, frozen=True):
    """What came of a recording: how many intervals of `every_ns` it has, of which the first `warm_up` only train."""

    intervals: int
    every_ns: int
    warm_up: int
    rows: tuple[Row, ...]


def intervals(recording: Iterable[Seen], every_ns: int) -> Iterator[Interval]:
    """Yield the samples of each training as the agent takes them: the p90 of the interval, out of the same series.

    A moment that is not newer than the one before is left out.
    """
    series, end_ns = node_series(), 0
    last: Seen | None = None
    for seen in recording:
        if last is None:
            end_ns = seen.now_ns + every_ns
        elif seen.now_ns <= last.now_ns:
            continue
        elif seen.now_ns > end_ns:
            yield from _ended(series, last, end_ns, every_ns)
            # What lies between two moments that are further apart has no samples.
            end_ns += every_ns * ((seen.now_ns - end_ns - 1) // every_ns + 1)
        _append(series, seen)
        last = seen
    if last is not None and last.now_ns > end_ns - every_ns // 2:
        yield from _ended(series, last, end_ns, every_ns)


def series_intervals(
    series: NodeSeries, uids: Collection[str], first_ns: int, last_ns: int, every_ns: int
) -> Iterator[Interval]:
    """Yield the same out of series that are there already, of pods whose bands are not known.

    Args:
        series: of a node.
        uids: of its pods.
        first_ns: when the first interval begins, by the clock of the series.
        last_ns: no interval ends later.
        every_ns: how long an interval is.
    """
    for end_ns in range(first_ns + every_ns, last_ns + 1, every_ns):
        usages = {uid: usage for uid in uids if (usage := pod_usage(series, uid, end_ns, every_ns)) is not None}
        samples = node_samples(dict.fromkeys(usages, NO_BAND), usages, node_usage(series, end_ns, every_ns))
        of_node = {uid: samples[uid] for uid in (NODE_UID, SYSTEM_UID) if uid in samples}
        if usages or of_node:
            yield Interval(end_ns, {**usages, **of_node})


def backtest(recorded: Iterable[Interval], settings: PredictionSettings, every_ns: int, warm_up: int) -> Backtest:
    """Compare each sample with the peak that was predicted from those before it.

    Args:
        recorded: in order of time.
        settings: half-lives, shares and margin.
        every_ns: how long an interval is.
        warm_up: samples that a model has before its predictions count.
    """
    models: Models = {}
    seen: dict[str, int] = {}
    scores: dict[tuple[str, ResourceName], _Score] = {}
    count = 0
    for interval in recorded:
        count += 1
        for uid, usage in interval.samples.items():
            if seen.get(uid, 0) >= warm_up:
                _compare(scores, uid, usage, peak_of(models[uid], settings), settings)
            seen[uid] = seen.get(uid, 0) + 1
        models = trained(models, interval.samples, interval.end_ns, settings.half_lives)
    order = [_PODS, *_NAMES.values()]
    by_place = sorted(scores.items(), key=lambda each: (order.index(each[0][0]), each[0][1]))
    rows = (score.row(of, resource, settings) for (of, resource), score in by_place if score.is_used)
    return Backtest(count, every_ns, warm_up, tuple(rows))


class _Score:
    def __init__(self) -> None:
        self.intervals = self.beyond_margin = 0
        self.is_used = False  # a band without pods uses nothing, which is no prediction to judge
        self.excess = array("d")

    def add(self, used: float, peak: int, with_margin_: int) -> None:
        self.intervals += 1
        self.is_used = self.is_used or used > 0
        if used > peak:
            self.excess.append(used / peak - 1 if peak else float("inf"))
        self.beyond_margin += used > with_margin_

    def row(self, of: str, resource: ResourceName, settings: PredictionSettings) -> Row:
        excess = sorted(self.excess)
        return Row(
            of,
            resource,
            settings.cpu_peak_percent if resource == "cpu" else settings.memory_peak_percent,
            self.intervals,
            len(excess) / self.intervals,
            self.beyond_margin / self.intervals,
            excess[(len(excess) - 1) // 2] if excess else None,
            excess[-1] if excess else None,
        )


def _compare(
    scores: dict[tuple[str, ResourceName], _Score],
    uid: str,
    usage: Usage,
    peak: Amounts,
    settings: PredictionSettings,
) -> None:
    of, most = _NAMES.get(uid, _PODS), with_margin(peak, settings)
    cpu, memory = scores.setdefault((of, "cpu"), _Score()), scores.setdefault((of, "memory"), _Score())
    cpu.add(usage.cpu_cores * 1000.0, peak.cpu_millicpu, most.cpu_millicpu)
    memory.add(usage.memory_bytes, peak.memory_bytes, most.memory_bytes)


def _append(series: NodeSeries, seen: Seen) -> None:
    for uid, usage in seen.pods.items():
        series.append((POD_CPU, uid), seen.now_ns, usage.cpu_cores)
        series.append((POD_MEMORY, uid), seen.now_ns, usage.memory_bytes)
    if seen.node is not None:
        series.append((NODE_CPU,), seen.now_ns, seen.node.cpu_cores)
        series.append((NODE_MEMORY,), seen.now_ns, seen.node.memory_bytes)


def _ended(series: NodeSeries, last: Seen, end_ns: int, every_ns: int) -> Iterator[Interval]:
    usages = {uid: usage for uid in last.bands if (usage := pod_usage(series, uid, end_ns, every_ns)) is not None}
    node = node_usage(series, end_ns, every_ns)
    if usages or node is not None:
        yield Interval(end_ns, {**usages, **node_samples(last.bands, usages, node)})
