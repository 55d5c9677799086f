"""A real ring read in place while the kernel writes: nothing lost, doubled, torn or out of order."""

from __future__ import annotations

import os
import select
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from koordebpf.errors import SupportError
from koordebpf.events.columns import columns
from koordebpf.events.layout import decode
from koordebpf.kernel.bpf.libbpf import RingReader
from koordebpf.kernel.bpf.ring import RingPages
from tests.support.loads.ring_flood import RingFlood

pytestmark = pytest.mark.usefixtures("require_root")

MIB = 1 << 20
N = 23


@pytest.fixture(autouse=True)
def x86_64() -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("not this kind of machine: the ring is read in place on x86-64 only")


@contextmanager
def reader(flood: RingFlood) -> Iterator[RingPages]:
    pages = RingPages(flood.ring.fd)
    try:
        yield pages
    finally:
        pages.close()


def numbers(pages: RingPages, limit: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield CPU and number of each record that is there, releasing them; the body has to repeat the number."""
    bodies = {"koord_reclaim": "delta_ns", "koord_oom_kill": "total_vm_pages", "koord_cgroup": "parent_id"}
    while batch := pages.look(limit):
        found = columns(batch)
        assert found.undecodable == 0
        assert sum(len(rows) for rows in found.rows.values()) == batch.count
        pairs, rows = [], None  # a batch may have nothing but records that were discarded
        for name, rows in found.rows.items():
            assert (rows["ts_ns"] == rows[bodies.get(name, "delta_ns")]).all()
            for cpu in np.unique(rows["cgroup_id"]):
                assert (np.diff(rows["ts_ns"][rows["cgroup_id"] == cpu].astype(np.int64)) > 0).all()
            pairs.append(np.stack((rows["cgroup_id"], rows["ts_ns"]), axis=1))
        # Each CPU's own order is the order of its numbers; between structures only that order is known.
        yield from sorted(pair for each in pairs for pair in map(tuple, each.tolist()))
        del rows, found, pairs
        pages.release(batch)


@pytest.mark.parametrize("is_mixed", [False, True], ids=["one kind", "four kinds"])
@pytest.mark.parametrize("n", [N, 10_000])
def test_exactly_n(is_mixed: bool, n: int) -> None:
    with RingFlood(4 * MIB, is_mixed=is_mixed) as flood, reader(flood) as pages:
        for _ in range(5):  # five times round the ring and more
            before = flood.sent()
            flood.send(n)
            seen = list(numbers(pages))
            assert seen == [(cpu, i) for cpu, sent in flood.sent().items() for i in range(before.get(cpu, 0), sent)]
            assert len(seen) == n
        assert pages.look() is None


def test_what_was_discarded_is_not_seen() -> None:
    with RingFlood(MIB, discards=3) as flood, reader(flood) as pages:
        flood.send(3000)
        seen = list(numbers(pages))
        assert 0 < len(seen) < 3000
        assert len(seen) == sum(flood.sent().values())
        assert pages.look() is None


def test_a_full_ring_loses_only_what_came_after() -> None:
    with RingFlood(os.sysconf("SC_PAGE_SIZE")) as flood, reader(flood) as pages:
        flood.send(1000)
        kept = sum(flood.sent().values())
        assert 0 < kept < 1000
        assert flood.lost() == 1000 - kept
        assert len(list(numbers(pages))) == kept
        flood.send(N)
        assert len(list(numbers(pages))) == N


@pytest.mark.usefixtures("one_cpu")
def test_what_is_not_released_is_seen_again() -> None:
    with RingFlood(MIB) as flood, reader(flood) as pages:
        flood.send(N)
        first = pages.look(10)
        assert first is not None
        assert first.count == 10
        again = pages.look(10)
        assert again is not None
        assert (again.begin, again.end) == (first.begin, first.end)
        pages.release(first)
        with pytest.raises(ValueError, match="consumer is at"):
            pages.release(again)
        assert len(list(numbers(pages, limit=4))) == N - 10


@pytest.mark.usefixtures("one_cpu")
def test_both_readers_may_take_turns() -> None:
    with RingFlood(MIB) as flood, reader(flood) as pages:
        callback = RingReader(flood.ring)
        flood.send(N)
        assert [decode(buf).ts_ns for buf in callback.read()] == list(range(N))
        flood.send(N)
        assert [number for _, number in numbers(pages)] == list(range(N, 2 * N))
        flood.send(N)
        assert [decode(buf).ts_ns for buf in callback.read()] == list(range(2 * N, 3 * N))
        callback.close()


def test_the_fd_is_readable_when_something_came() -> None:
    with RingFlood(MIB) as flood, reader(flood) as pages, select.epoll() as epoll:
        epoll.register(pages, select.EPOLLIN)
        assert epoll.poll(0) == []
        flood.send(1)
        assert epoll.poll(10) == [(pages.fileno(), select.EPOLLIN)]
        assert len(list(numbers(pages))) == 1
        assert epoll.poll(0) == []


@pytest.mark.usefixtures("one_cpu")
def test_pages_outlive_the_object() -> None:
    with RingFlood(MIB) as flood:
        flood.send(N)
        pages = RingPages(flood.ring.fd)
    assert [number for _, number in numbers(pages)] == list(range(N))
    batch = pages.look()
    pages.close()
    pages.close()
    assert batch is None
    with pytest.raises(ValueError, match="released"):
        pages.look()


def test_another_fd_is_refused() -> None:
    with Path(os.devnull).open() as file, pytest.raises(SupportError, match="no ring buffer"):
        RingPages(file.fileno())


# In a process of its own on a CPU of its own: in chunks, so that the reader gets its turn where both share one.
def _flood_from(flood: RingFlood, cpu: int, chunks: int, chunk: int, begin: Callable[[], bool]) -> None:
    os.sched_setaffinity(0, {cpu})
    begin()
    for _ in range(chunks):
        flood.send(chunk)
        time.sleep(0.0005)


@pytest.mark.parametrize("is_mixed", [False, True], ids=["one kind", "four kinds"])
def test_while_every_cpu_writes(is_mixed: bool) -> None:
    cpus = sorted(os.sched_getaffinity(0))[:4]
    fork = get_context("fork")
    with RingFlood(16 * MIB, is_mixed=is_mixed, discards=100) as flood, reader(flood) as pages:
        begin = fork.Event()
        writers = [fork.Process(target=_flood_from, args=(flood, cpu, 100, 500, begin.wait)) for cpu in cpus]
        for writer in writers:
            writer.start()
        begin.set()
        following: Counter[int] = Counter()
        out_of_order = 0
        is_done = False
        while not is_done:
            is_done = not any(writer.is_alive() for writer in writers)
            for cpu, number in numbers(pages):
                out_of_order += number != following[cpu]
                following[cpu] = number + 1
        for writer in writers:
            writer.join()
            assert writer.exitcode == 0
        sent = flood.sent()
        assert set(sent) == set(cpus)
        assert out_of_order == 0
        assert dict(following) == sent
        assert sum(sent.values()) + flood.lost() <= 50_000 * len(cpus)
        # A slow machine may lose some to a full ring; what was sent is what was read all the same.
        assert sum(sent.values()) > 0
