"""Writes the kernel's records of one node to a file as they lie in the ring, for rates at which none can be looked at.

Nothing is filtered but by what the programs do not send; who reads the recording filters.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.errors import SupportError
from koordebpf.kernel.bpf.libbpf import READ_AT_MOST
from koordebpf.kernel.bpf.ring import RingPages, require_numpy
from koordebpf.kernel.cgroup.hierarchy import walk
from koordebpf.kernel.cgroup.kill import raise_thread_priority
from koordebpf.kernel.io.loop import Loop
from koordebpf.store.recording import Recorder, RecordingSummary, own_header
from koordebpf.units import MIB, NS_PER_S

log = logging.getLogger(__name__)

# Why: at 2 M records/s it is full after 90 ms, which a busy machine may let a process wait for its CPU.
RING_BYTES = 16 * MIB
# Why: 1,000 sweeps a second cost 2 % of a CPU, and a ring of 256 KiB is full after 2.7 ms at 1 M records/s.
_GATHER_S = 0.001
_AT_ONCE = 1 << 18  # records, of a source whose ring cannot be read in place
_POLL_NS = NS_PER_S // 10  # where there is no fd to wait for


class RecordSource(Protocol):
    """The part of a backend that a recording needs."""

    def fileno(self) -> int | None:
        """Return an fd that is readable when there is something; of a ring buffer map where there is one."""

    def read(self) -> list[bytes]:
        """Return all records that are there, oldest first; never waits."""


def record(
    watch: NodeWatch,
    path: Path,
    *,
    count: int | None = None,
    seconds: float | None = None,
    max_bytes: int | None = None,
) -> RecordingSummary:
    """Write the kernel's records to `path` until SIGTERM, SIGINT, so many records, so long, or so large a file.

    Nothing else may drain the watch meanwhile; open it with `RING_BYTES`, or a flood fills its ring. The file may pass
    `max_bytes` by what one ring holds.

    Raises:  SupportError: numpy is not installed. ConfigError: the file cannot be written.
    """
    require_numpy()
    cgroups = {own_id: below for own_id, _, below in walk(watch.scope.path, watch.scope.hierarchy.mount_point)}
    before = watch.totals()
    with Loop() as loop, high_priority():
        loop.stop_on_signals()
        until_ns = None if seconds is None else time.monotonic_ns() + int(seconds * NS_PER_S)
        with Recorder(path, own_header(cgroups)) as recorder:
            follow(watch.signals, recorder, loop, count=count, until_ns=until_ns, max_bytes=max_bytes)
            after = watch.totals()
            return recorder.finish(after.ring_lost - before.ring_lost if after and before else None)


@contextmanager
def high_priority() -> Iterator[None]:
    """Give the calling thread the highest nice level meanwhile: who waits for a CPU while the ring fills up loses."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if reason := raise_thread_priority():
        log.warning("records may be lost while other processes have the CPU: %s", reason)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


def follow(
    signals: RecordSource,
    recorder: Recorder,
    loop: Loop,
    *,
    count: int | None = None,
    until_ns: int | None = None,
    max_bytes: int | None = None,
) -> None:
    """Append what the backend gives until the loop is stopped or a limit is reached; then what is still in its ring."""
    source = _open_source(signals)
    fd = signals.fileno()
    if fd is not None:
        loop.watch(fd, lambda: None)
    period_ns = NS_PER_S if fd is not None else _POLL_NS
    try:
        while True:
            now_ns = time.monotonic_ns()
            is_over = loop.stopping or (until_ns is not None and now_ns >= until_ns)
            left = None if count is None else count - recorder.records
            took = source.take(recorder, left)
            if is_over or recorder.records == count or (max_bytes is not None and recorder.bytes >= max_bytes):
                return
            if took:
                time.sleep(_GATHER_S)
            else:
                loop.wait(min(now_ns + period_ns, until_ns or now_ns + period_ns))
    finally:
        if fd is not None:
            loop.unwatch(fd)
        source.close()


class _MappedRing:
    def __init__(self, pages: RingPages) -> None:
        self._pages = pages

    # Everything up to where the producer is now, and not after: it may be faster than the file.
    def take(self, recorder: Recorder, limit: int | None) -> bool:
        end = self._pages.produced
        took = False
        while (limit is None or limit > 0) and (batch := self._pages.look(limit)):
            recorder.write(batch)
            self._pages.release(batch)
            took = True
            if limit is not None:
                limit -= batch.count
            if batch.end >= end:
                break
        return took

    def close(self) -> None:
        self._pages.close()


class _OneByOne:
    def __init__(self, signals: RecordSource) -> None:
        self._signals = signals

    # One read is bounded; so many of them are a ring of 16 MiB.
    def take(self, recorder: Recorder, limit: int | None) -> bool:
        most = _AT_ONCE if limit is None else limit
        took = 0
        while took < most:
            records = self._signals.read()
            recorder.add(records[: most - took])
            took += len(records)
            if len(records) < READ_AT_MOST:
                break
        return took > 0

    def close(self) -> None:
        pass


# A backend without a ring, or a machine that cannot read one in place, is recorded all the same, only slower.
def _open_source(signals: RecordSource) -> _MappedRing | _OneByOne:
    require_numpy()
    fd = signals.fileno()
    try:
        return _OneByOne(signals) if fd is None else _MappedRing(RingPages(fd))
    except SupportError as error:
        log.warning("%s", error)
        return _OneByOne(signals)
