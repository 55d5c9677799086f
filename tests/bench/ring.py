"""How many records a second an agent takes out of a ring buffer, and at which cost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess

from koordebpf.events.layout import decode
from koordebpf.events.records import ReclaimStall
from koordebpf.kernel.bpf.libbpf import RingReader
from koordebpf.kernel.cgroup.kill import raise_thread_priority
from koordebpf.units import NS_PER_S, format_bytes
from tests.bench.figure import at_least, at_most
from tests.bench.report import CannotMeasure, Report
from tests.support.loads.ring_flood import RingFlood

_RING_BYTES = 64 << 20  # 0.3 s of records: on a busy machine the reader may wait so long for its CPU
_NAP_S = 0.01
_RATE = 300_000  # a second, asked of the generator
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
    # As an agent runs: a busy machine is not what is measured.
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    raise_thread_priority()
    generator.start()
    os.sched_setaffinity(0, before - {max(before)})
    try:
        yield generator
    finally:
        os.sched_setaffinity(0, before)
        os.setpriority(os.PRIO_PROCESS, 0, priority)
        generator.join()
    if generator.exitcode:
        raise RuntimeError(f"the generator ended with {generator.exitcode}")


class _Taker:
    """libbpf calls for each record; each is decoded to a value, and what reclaim took is summed."""

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


class _Run:
    """One flood, taken as it comes."""

    def __init__(self, seconds: float, *, is_mixed: bool) -> None:
        with RingFlood(_RING_BYTES, is_mixed=is_mixed) as flood:
            taker = _Taker(flood)
            with _generating(flood, _RATE, seconds) as generator:
                cpu, started_s = time.process_time(), time.monotonic()
                self.taken = 0
                is_done = False
                while not is_done:
                    is_done = not generator.is_alive()
                    while taken := taker.take():
                        self.taken += taken
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
    """Flood a ring and take everything out again."""
    seconds = 2.0 if report.quick else 10.0
    for name, is_mixed in (("one kind", False), ("four kinds mixed", True)):
        run = _Run(seconds, is_mixed=is_mixed)
        if run.asked_rate < 0.9 * _RATE:
            load = os.getloadavg()[0]
            report.cannot(
                f"{name} at {_RATE / 1e6:g} M records/s: at a load of {load:.1f} the generator came to"
                f" {run.asked_rate / 1e6:.2g} M/s, so its rows say what the machine had left"
            )
        method = (
            f"{_RATE / 1e6:g} M records/s asked of a test-run program, {format_bytes(_RING_BYTES)} ring, {seconds:g} s,"
            " each decoded"
        )
        report.add(at_least(f"ring: {name}, taken", "M/s", run.rate / 1e6, None, method))
        report.add(at_most(f"ring: {name}, lost", "", run.lost, None, "records that found it full"))
        report.add(at_most(f"ring: {name}, CPU each", "ns", run.cpu_ns, None, "the reader's process time"))
