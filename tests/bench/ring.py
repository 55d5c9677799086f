"""How many records a second can be taken out of a ring buffer, and at which cost, by each way there is."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from koordebpf.events.columns import columns
from koordebpf.events.layout import decode, expected_offsets
from koordebpf.events.records import ReclaimStall
from koordebpf.kernel.bpf.libbpf import RingReader
from koordebpf.kernel.bpf.ring import Batch, RingPages
from koordebpf.kernel.io.loop import Loop
from koordebpf.store.recording import Recorder, own_header, read_recording
from koordebpf.tools.record import follow, high_priority
from koordebpf.units import NS_PER_S, format_bytes
from tests.bench.figure import at_least, at_most
from tests.bench.report import CannotMeasure, Report
from tests.support.loads.ring_flood import RingFlood

_RING_BYTES = 64 << 20  # 0.3 s of records: on a busy machine the reader may wait so long for its CPU
_NAP_S = 0.01
_RATE = 2_200_000  # a second, asked of the generator
_SLOW_RATE = 300_000  # for those that could not follow: libbpf's callbacks do not return before the ring is empty
_RECORDING_RATE = 1_300_000
_BURST_S = 0.001


# The generator, in a process and on a CPU of its own: bursts of a millisecond's records, none dropped when it is late,
# but no more at once than an eighth of the ring holds.
def _generate(flood: RingFlood, cpu: int, total: int, rate: int) -> None:
    os.sched_setaffinity(0, {cpu})
    most = _RING_BYTES // 8 // 128
    sent, started_s = 0, time.monotonic()
    while sent < total:
        due = min(int((time.monotonic() - started_s + _BURST_S) * rate), total) - sent
        if due > 0:
            flood.send(min(due, most))
            sent += min(due, most)
        time.sleep(_BURST_S / 2)


@contextmanager
def _generating(flood: RingFlood, rate: int, seconds: float) -> Iterator[BaseProcess]:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        raise CannotMeasure("needs two CPUs: one writes while the other reads")
    generator = get_context("fork").Process(target=_generate, args=(flood, max(before), int(rate * seconds), rate))
    # Both as `trace --record` runs: a busy machine is not what is measured.
    with high_priority():
        generator.start()
        os.sched_setaffinity(0, before - {max(before)})
        try:
            yield generator
        finally:
            os.sched_setaffinity(0, before)
            generator.join()
    if generator.exitcode:
        raise RuntimeError(f"the generator ended with {generator.exitcode}")


class _Taker(Protocol):
    """One way to take what is there: returns how many records, and adds up their `delta_ns`."""

    stalled_ns: int

    def take(self) -> int: ...
    def close(self) -> None: ...


class _Callback:
    """libbpf calls for each record; each is decoded to a value."""

    def __init__(self, flood: RingFlood) -> None:
        self.stalled_ns = 0
        self._ring = RingReader(flood.ring)

    def take(self) -> int:
        taken = self._ring.read()
        for buf in taken:
            record = decode(buf)
            if isinstance(record, ReclaimStall):
                self.stalled_ns += record.delta_ns
        return len(taken)

    def close(self) -> None:
        self._ring.close()


class _Mapped:
    """The ring in place."""

    def __init__(self, flood: RingFlood) -> None:
        self.stalled_ns = 0
        self._pages = RingPages(flood.ring.fd)

    def take(self) -> int:
        taken = 0
        while batch := self._pages.look():
            self._add(batch)
            taken += batch.count
            self._pages.release(batch)
        return taken

    def _add(self, batch: Batch) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._pages.close()


class _Columns(_Mapped):
    """Found and seen as columns by numpy."""

    def _add(self, batch: Batch) -> None:
        for rows in columns(batch).rows.values():
            if "delta_ns" in rows.dtype.names:
                self.stalled_ns += int(rows["delta_ns"].sum())


class _Unpacked(_Mapped):
    """Found by numpy, each unpacked by struct."""

    _RECLAIM = struct.Struct(f"<{expected_offsets('koord_reclaim')[1]['delta_ns']}xQ")

    def _add(self, batch: Batch) -> None:
        memory = batch.memory.data
        self.stalled_ns += sum(self._RECLAIM.unpack_from(memory, at)[0] for at in batch.offsets.tolist())


class _Decoded(_Mapped):
    """Found by numpy, each decoded to a value."""

    def _add(self, batch: Batch) -> None:
        memory = batch.memory.data
        for at, size in zip(batch.offsets.tolist(), batch.sizes.tolist(), strict=True):
            record = decode(bytes(memory[at : at + size]))
            if isinstance(record, ReclaimStall):
                self.stalled_ns += record.delta_ns


class _Run:
    """One flood, taken in one way."""

    def __init__(self, make: Callable[[RingFlood], _Taker], rate: int, seconds: float, *, is_mixed: bool) -> None:
        with RingFlood(_RING_BYTES, is_mixed=is_mixed) as flood:
            taker = make(flood)
            taker.take()  # what is imported and made once
            with _generating(flood, rate, seconds) as generator:
                cpu, started_s = time.process_time(), time.monotonic()
                self.taken = 0
                is_done = False
                while not is_done:
                    is_done = not generator.is_alive()
                    self.taken += taker.take()
                    time.sleep(_NAP_S)
                elapsed_s = time.monotonic() - started_s
                self.rate = self.taken / elapsed_s
                self.asked_rate = (self.taken + flood.lost()) / elapsed_s
                self.cpu_ns = (time.process_time() - cpu) / self.taken * NS_PER_S
            taker.close()
            self.lost = flood.lost()
            (sent,) = flood.sent().values()
            if self.taken != sent:
                raise RuntimeError(f"{sent} records were sent and {self.taken} taken")
            if not is_mixed and taker.stalled_ns != sent * (sent - 1) // 2:
                raise RuntimeError("what was taken is not what was sent")


def ring(report: Report) -> None:
    """Flood a ring and take everything out again, by numpy and by what else there is; then into files."""
    if os.uname().machine != "x86_64":
        raise CannotMeasure("the ring is read in place on x86-64 only")
    seconds = 2.0 if report.quick else 10.0
    for name, make, is_mixed, rate in (
        ("numpy columns", _Columns, False, _RATE),
        ("numpy columns, four kinds mixed", _Columns, True, _RATE),
        ("mapped, struct.unpack_from each", _Unpacked, False, _SLOW_RATE),
        ("mapped, decode() each", _Decoded, False, _SLOW_RATE),
        ("libbpf callback, decode() each", _Callback, False, _SLOW_RATE),
    ):
        run = _Run(make, rate, seconds, is_mixed=is_mixed)
        is_ours = make is _Columns and not is_mixed
        if run.asked_rate < 0.9 * rate:
            load = os.getloadavg()[0]
            report.cannot(
                f"{name} at {rate / 1e6:g} M records/s: at a load of {load:.1f} the generator came to"
                f" {run.asked_rate / 1e6:.2g} M/s, so its rows say what the machine had left"
            )
        method = (
            f"{rate / 1e6:g} M records/s asked of a test-run program, {format_bytes(_RING_BYTES)} ring, {seconds:g} s,"
            " each record's delta_ns summed"
        )
        report.add(at_least(f"ring: {name}, taken", "M/s", run.rate / 1e6, 2.0 if is_ours else None, method))
        report.add(at_most(f"ring: {name}, lost", "", run.lost, 0 if is_ours else None, "records that found it full"))
        report.add(
            at_most(f"ring: {name}, CPU each", "ns", run.cpu_ns, 50 if is_ours else None, "the reader's process time")
        )
    _highest(report)
    for place, folder in (("tmpfs", "/dev/shm"), ("disk", "/var/tmp")):
        _recorded(report, place, folder, seconds=2.0 if report.quick else 6.0)


def _highest(report: Report) -> None:
    best = 0.0
    for rate in (3_000_000, 4_000_000, 6_000_000, 8_000_000, 12_000_000):
        run = _Run(_Columns, rate, 1.0 if report.quick else 3.0, is_mixed=False)
        if run.lost:
            break
        best = max(best, run.rate)
        if run.rate < 0.9 * rate:
            break
    method = "3, 4, 6, 8 and 12 M records/s asked for in turn until some are lost or the generator does not reach it"
    report.add(at_least("ring: numpy columns, highest rate without a loss", "M/s", best / 1e6, None, method))


def _recorded(report: Report, place: str, folder: str, seconds: float) -> None:
    with TemporaryDirectory(dir=folder) as directory, RingFlood(_RING_BYTES) as flood, Loop() as loop:
        path = Path(directory) / "flood.rec"
        source = RingReader(flood.ring)
        with Recorder(path, own_header({})) as recorder, _generating(flood, _RECORDING_RATE, seconds) as generator:
            cpu, started_s = time.process_time(), time.monotonic()
            while generator.is_alive():
                follow(source, recorder, loop, until_ns=time.monotonic_ns() + NS_PER_S // 10)
            follow(source, recorder, loop, until_ns=1)
            rate = recorder.records / (time.monotonic() - started_s)
            cpu_ns = (time.process_time() - cpu) / recorder.records * NS_PER_S
            lost = flood.lost()
            summary = recorder.finish(lost)
        source.close()
        started_s = time.monotonic()
        read = sum(1 for _ in read_recording(path))
        read_rate = read / (time.monotonic() - started_s)
        if read != sum(flood.sent().values()):
            raise RuntimeError(f"{flood.sent()} records were sent and {read} are in the file")
    method = f"{_RECORDING_RATE / 1e6:g} M records/s asked for, {folder}, {format_bytes(summary.bytes)}, {seconds:g} s"
    report.add(at_least(f"recording to {place}", "M/s", rate / 1e6, 1.0, method))
    report.add(at_most(f"recording to {place}, lost", "", lost, 0, "records that found it full"))
    report.add(at_most(f"recording to {place}, CPU each", "ns", cpu_ns, None, "process time with the file's writes"))
    report.add(
        at_least(f"recording from {place}, read", "M/s", read_rate / 1e6, None, "bytes of each, by read_recording")
    )
