"""Half an hour of a node's series: CPU time of rounds, queries and snapshots, memory; and other ways to store them."""

from __future__ import annotations

import gc
import random
import tempfile
import time
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from koordebpf.jobs.usage_series.snapshot import SnapshotWriter, restore_series
from koordebpf.state.series.aggregate import Aggregation
from koordebpf.state.series.block import BLOCK_ROUNDS, decode_block, encode_block
from koordebpf.state.series.kinds import (
    CONTAINER_CPU,
    CONTAINER_MEMORY,
    CONTAINER_THROTTLED,
    POD_CPU,
    POD_MEMORY,
    POD_THROTTLED,
    SeriesKey,
)
from koordebpf.state.series.store import SeriesSettings, SeriesStore, node_series
from koordebpf.units import MIB, NS_PER_S, PAGE_BYTES
from tests.bench.figure import at_most, figure
from tests.bench.report import Report

_KINDS = ((POD_CPU, CONTAINER_CPU), (POD_MEMORY, CONTAINER_MEMORY), (POD_THROTTLED, CONTAINER_THROTTLED))
_SECONDS = 1800
_QUERIES = 110


def series(report: Report) -> None:
    """Fill a store as the usage collector does, and ask it what the reports ask."""
    _measure(report, 110, 330)
    if not report.quick:
        _measure(report, 500, 1000)
    _other_designs(report)


class _Usage:
    """Usage of one node: most containers use little, memory moves by pages and often not at all, few are throttled."""

    def __init__(self, pods: int, containers: int) -> None:
        self._random = random.Random(17)
        self.keys: list[tuple[SeriesKey, ...]] = [
            tuple((kind[level], f"{number:0{length}x}") for kind in _KINDS)
            for level, many, length in ((0, pods, 36), (1, containers, 64))
            for number in range(many)
        ]
        self._cpu = [self._random.random() ** 4 * 2 for _ in self.keys]
        self._pages = [self._random.randrange(1 << 14, 1 << 20) for _ in self.keys]

    def rounds(self, seconds: int) -> Iterator[tuple[int, dict[SeriesKey, float]]]:
        """Yield one moment after the other."""
        chance = self._random
        for second in range(1, seconds + 1):
            values: dict[SeriesKey, float] = {}
            for number, (cpu, memory, throttled) in enumerate(self.keys):
                if chance.random() < 0.3:
                    self._pages[number] = max(self._pages[number] + chance.randrange(-64, 65), 1)
                values[cpu] = self._cpu[number] * chance.lognormvariate(0, 0.4)
                values[memory] = float(self._pages[number] * PAGE_BYTES)
                values[throttled] = 0.0 if number % 10 else max(0.0, chance.gauss(0.1, 0.1))
            yield second * NS_PER_S, values


def _measure(report: Report, pods: int, containers: int) -> None:
    usage, of = _Usage(pods, containers), f"{pods} / {containers}"
    store, exact = SeriesStore(SeriesSettings()), _Exact()
    before, took_ms = _resident(), []
    for t_ns, values in usage.rounds(_SECONDS):
        exact.take(values)
        started_ns = time.thread_time_ns()
        store.append_round(t_ns, values)
        took_ms.append((time.thread_time_ns() - started_ns) / 1e6)
    held, counts, method = _resident() - before, store.counts, f"{_SECONDS} rounds of {len(usage.keys) * 3} series"
    goal = len(usage.keys) * 3 / 1000  # 1 ms for 1,000 series
    report.add(figure(f"a round appended, {of}", "ms", took_ms, method, reach_p50=goal))
    report.add(at_most(f"RSS of 30 min, {of}", "MiB", held / MIB, 8 if pods == 110 else None, method))
    samples = len(usage.keys) * 3 * _SECONDS - counts.dropped_samples
    report.add(at_most(f"bytes a sample, {of}", "B", counts.bytes / samples, None, f"{counts.dropped_samples} dropped"))
    _ask(report, store, [each[0] for each in usage.keys[:_QUERIES]], of)
    _snapshots(report, store, of)
    report.add(at_most(f"largest error of a mean of 5 min, {of}", "ppm", exact.error_ppm(store), None, "of the mean"))


class _Exact:
    """The last five minutes of some series, as they are."""

    def __init__(self) -> None:
        self._kept: dict[SeriesKey, list[float]] = {}

    def take(self, values: dict[SeriesKey, float]) -> None:
        for key in list(values)[:60]:
            kept = self._kept.setdefault(key, [])
            kept.append(values[key])
            del kept[:-300]

    def error_ppm(self, store: SeriesStore) -> float:
        errors = []
        for key, values in self._kept.items():
            mean, found = sum(values) / len(values), store.query(key, _SECONDS * NS_PER_S, 300 * NS_PER_S, "avg")
            errors.append(abs((found or 0) - mean) / mean * 1e6 if mean else abs(found or 0))
        return max(errors)


def _ask(report: Report, store: SeriesStore, keys: Sequence[SeriesKey], of: str) -> None:
    now_ns = _SECONDS * NS_PER_S

    def timed(ask: Callable[[SeriesKey], object]) -> list[float]:
        took_us = []
        for key in keys:
            started_ns = time.thread_time_ns()
            ask(key)
            took_us.append((time.thread_time_ns() - started_ns) / 1e3)
        return took_us

    questions: tuple[tuple[int, Aggregation], ...] = ((2, "latest"), (60, "p90"), (300, "avg"), (1800, "avg"))
    for window_s, aggregation in questions:
        took = timed(lambda key, w=window_s, a=aggregation: store.query(key, now_ns, w * NS_PER_S, a))  # type: ignore[misc]
        report.add(figure(f"query {aggregation} of {window_s} s, {of}", "µs", took, "one series"))
    took = timed(lambda key: store.aggregated(key, now_ns, 1800 * NS_PER_S))
    report.add(figure(f"all aggregations of 30 min, {of}", "µs", took, "one series"))


def _snapshots(report: Report, store: SeriesStore, of: str) -> None:
    now_ns = _SECONDS * NS_PER_S
    with tempfile.TemporaryDirectory(dir="/run") as folder:
        path = Path(folder) / "series.snapshot"
        writer, took_ms = SnapshotWriter(path, store), []
        writer.start()
        while writer.is_writing:
            started_ns = time.thread_time_ns()
            writer.write_some(now_ns)
            took_ms.append((time.thread_time_ns() - started_ns) / 1e6)
        size = f"a file of {path.stat().st_size / MIB:.1f} MiB, {sum(took_ms):.0f} ms in all"
        report.add(figure(f"a step of a snapshot, {of}", "ms", took_ms, size, reach_p50=1))
        started_ns = time.thread_time_ns()
        restore_series(path, node_series(), now_ns)
        report.add(at_most(f"a snapshot restored, {of}", "ms", (time.thread_time_ns() - started_ns) / 1e6, None, size))


# The same values in other forms: a block of 64 rounds of the cpu, memory and throttled series of 110 pods.
def _other_designs(report: Report) -> None:
    usage = _Usage(110, 0)
    rounds = [values for _, values in usage.rounds(BLOCK_ROUNDS)]
    columns = [[values[key] for values in rounds] for keys in usage.keys for key in keys]
    samples = len(columns) * BLOCK_ROUNDS

    def whole_steps() -> tuple[int, list[bytes]]:
        blocks = [encode_block(0, column) for column in columns]
        return sum(map(len, blocks)), blocks

    def float_planes() -> tuple[int, list[bytes]]:
        packed = []
        for column in columns:
            raw = array("f", column).tobytes()
            packed.append(zlib.compress(b"".join(raw[plane::4] for plane in range(4)), 1))
        return sum(map(len, packed)), packed

    def float_columns_together() -> tuple[int, list[bytes]]:
        raw = b"".join(array("f", column).tobytes() for column in columns)
        packed = zlib.compress(b"".join(raw[plane::4] for plane in range(4)), 1)
        return len(packed), [packed]

    def xor_of_neighbours() -> tuple[int, list[bytes]]:
        packed = []
        for column in columns:
            words = array("I", array("f", column).tobytes())
            words = array("I", [words[0], *(a ^ b for a, b in pairwise(words))])
            packed.append(zlib.compress(words.tobytes(), 1))
        return sum(map(len, packed)), packed

    for name, design in (
        ("whole steps above the least (used)", whole_steps),
        ("32-bit floats by byte, zlib, each series", float_planes),
        ("32-bit floats by byte, zlib, all together", float_columns_together),
        ("XOR of neighbours, zlib, each series", xor_of_neighbours),
    ):
        started_ns = time.thread_time_ns()
        size, blocks = design()
        encode_ns = (time.thread_time_ns() - started_ns) / samples
        started_ns = time.thread_time_ns()
        for block in blocks:
            decode_block(block) if design is whole_steps else zlib.decompress(block)
        decode_ns = (time.thread_time_ns() - started_ns) / samples
        method = f"{encode_ns:.0f} ns a sample to encode, {decode_ns:.0f} to unpack"
        report.add(at_most(f"bytes a sample, {name}", "B", size / samples, None, method))


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
