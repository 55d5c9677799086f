"""Recording the kernel's records to a file while they come."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import pytest

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.events.layout import decode
from koordebpf.events.records import CgroupMkdir, CgroupRmdir
from koordebpf.kernel.bpf.libbpf import RingReader
from koordebpf.kernel.bpf.ring import RingPages
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.io.loop import Loop
from koordebpf.store.recording import Recorder, own_header, read_recording
from koordebpf.tools.record import RING_BYTES, follow, record
from koordebpf.units import NS_PER_S
from tests.support.loads.ring_flood import RingFlood
from tests.support.patience import patience

pytestmark = pytest.mark.usefixtures("require_root")

MIB = 1 << 20
N = 23


class FloodSource:
    """What a recording needs of a backend, over a flooded ring. With another fd, or none, it is read one by one."""

    def __init__(self, flood: RingFlood, fd: int | None) -> None:
        self._reader = RingReader(flood.ring)
        self._fd = fd

    def fileno(self) -> int | None:
        return self._fd

    def read(self) -> list[bytes]:
        return self._reader.read()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.rec"


def numbers(path: Path) -> list[int]:
    return [decode(buf).ts_ns for buf in read_recording(path)]


def record_flood(flood: RingFlood, path: Path, fd: int | None, **limits: int) -> None:
    with Loop() as loop, Recorder(path, own_header({})) as recorder:
        loop.stop_on_signals()
        follow(FloodSource(flood, fd), recorder, loop, until_ns=1, **limits)
        recorder.finish(flood.lost())


@contextmanager
def event_fd() -> Iterator[int]:
    fd = os.eventfd(0)
    yield fd
    os.close(fd)


@pytest.mark.usefixtures("one_cpu")
@pytest.mark.parametrize("fd", ["the ring's", "another", "none"])
@pytest.mark.parametrize("is_mixed", [False, True], ids=["one kind", "four kinds"])
def test_exactly_n(path: Path, fd: str, is_mixed: bool) -> None:
    with RingFlood(4 * MIB, is_mixed=is_mixed, discards=50) as flood, event_fd() as another:
        flood.send(10_000)
        fds = {"the ring's": flood.ring.fd, "another": another, "none": None}
        record_flood(flood, path, fds[fd])
        (sent,) = flood.sent().values()
    recording = read_recording(path)
    assert recording.summary is not None
    assert (recording.summary.records, recording.summary.lost) == (sent, 0)
    assert numbers(path) == list(range(sent))


@pytest.mark.usefixtures("one_cpu")
def test_a_count_is_exact_and_the_rest_stays(path: Path) -> None:
    with RingFlood(MIB, is_mixed=True) as flood:
        flood.send(1000)
        record_flood(flood, path, flood.ring.fd, count=N)
        assert numbers(path) == list(range(N))
        assert len(RingReader(flood.ring).read()) == 1000 - N


def test_a_size_ends_it(path: Path) -> None:
    with RingFlood(MIB) as flood:
        flood.send(1000)
        record_flood(flood, path, flood.ring.fd, max_bytes=1)
    assert len(numbers(path)) == 1000


# A recorder in a process of its own, as `koordebpf trace --record` is, while the ring is written to.
def _record_until_signal(flood: RingFlood, path: Path, is_ready: Callable[[], None]) -> None:
    with Loop() as loop, Recorder(path, own_header({})) as recorder:
        loop.stop_on_signals()
        is_ready()
        follow(FloodSource(flood, flood.ring.fd), recorder, loop)
        recorder.finish(flood.lost())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_was_taken_is_written_whatever_ends_it(path: Path, number: int) -> None:
    fork = get_context("fork")
    with RingFlood(16 * MIB, is_mixed=True) as flood:
        ready = fork.Event()
        recorder = fork.Process(target=_record_until_signal, args=(flood, path, ready.set))
        recorder.start()
        assert ready.wait(patience(30))
        for _ in range(100):
            flood.send(300)
            time.sleep(0.0005)
        assert recorder.pid is not None
        os.kill(recorder.pid, number)
        recorder.join(patience(30))
        assert recorder.exitcode == (-signal.SIGKILL if number == signal.SIGKILL else 0)
        left = [decode(buf) for buf in RingReader(flood.ring).read()]
        sent = flood.sent()
        assert flood.lost() == 0
    recording = read_recording(path)
    seen = [decode(buf) for buf in recording]
    assert recording.is_cut == (number == signal.SIGKILL)
    if number != signal.SIGKILL:
        assert left == []
    # Between a write and the release of what was written SIGKILL leaves records in both.
    both = [(each.cgroup_id, each.ts_ns) for each in (*seen, *left)]
    assert set(both) == {(cpu, i) for cpu, n in sent.items() for i in range(n)}
    assert number == signal.SIGKILL or len(both) == len(set(both))


# The whole of it, in a process of its own: a busy machine would fill the ring while no process reads it.
def _record_node(hierarchy: MemoryHierarchy, path: Path, is_ready: Callable[[], None]) -> None:
    with NodeWatch(open_scope(hierarchy, None), None, 0, ring_bytes=RING_BYTES) as watch:
        assert RingPages(watch.signals.fileno()).ring_bytes == RING_BYTES
        watch.drain()
        is_ready()
        summary = record(watch, path, seconds=60)
    assert read_recording(path).summary == summary


def test_a_nodes_mkdirs_and_rmdirs(path: Path, memory_cgroup: Path, hierarchy: MemoryHierarchy) -> None:
    own = memory_cgroup.stat().st_ino
    fork = get_context("fork")
    ready = fork.Event()
    recorder = fork.Process(target=_record_node, args=(hierarchy, path, ready.set))
    recorder.start()
    assert ready.wait(patience(30))
    wait_for(lambda: path.exists() and path.stat().st_size > 0)  # its handlers are there too
    for i in range(N):
        (memory_cgroup / f"pod{i}").mkdir()
        (memory_cgroup / f"pod{i}").rmdir()
    assert recorder.pid is not None
    os.kill(recorder.pid, signal.SIGTERM)
    recorder.join(patience(30))
    assert recorder.exitcode == 0
    recording = read_recording(path)
    assert recording.summary is not None
    assert recording.summary.lost == 0
    assert recording.header.cgroups[own] == memory_cgroup.relative_to(hierarchy.mount_point).as_posix()
    seen = [each for each in map(decode, recording) if getattr(each, "parent_id", None) == own]
    assert [type(each) for each in seen] == [CgroupMkdir, CgroupRmdir] * N
    assert [each.name for each in seen] == [f"pod{i // 2}" for i in range(2 * N)]


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline_ns = time.monotonic_ns() + int(patience(30) * NS_PER_S)
    while not is_true():
        assert time.monotonic_ns() < deadline_ns
        time.sleep(0.001)
