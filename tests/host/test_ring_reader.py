"""A ring read record by record: one call takes a bounded number, and the rest comes in order, and wakes."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest

from koordebpf.events.layout import decode
from koordebpf.events.records import ReclaimStall
from koordebpf.kernel.bpf.libbpf import READ_AT_MOST, RingReader
from tests.support.loads.ring_flood import RingFlood

pytestmark = pytest.mark.usefixtures("require_root")

MIB = 1 << 20
N = 23


@pytest.fixture
def flood() -> Iterator[RingFlood]:
    with RingFlood(4 * MIB) as made:
        yield made


def is_readable(reader: RingReader) -> bool:
    poll = select.poll()
    poll.register(reader.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def test_a_call_takes_so_many_and_the_next_ones_the_rest(flood: RingFlood) -> None:
    reader = RingReader(flood.ring, at_most=10)
    flood.send(N)
    calls = []
    while is_readable(reader):
        calls.append(reader.read())
    assert [len(each) for each in calls] == [10, 10, 3]
    assert len({*(record for call in calls for record in call)}) == N
    assert reader.read() == []
    reader.close()


def test_what_comes_while_there_is_a_rest_wakes_and_comes_after_it(flood: RingFlood) -> None:
    reader = RingReader(flood.ring, at_most=10)
    with select.epoll() as epoll:  # as the event loop waits
        epoll.register(reader.fileno(), select.EPOLLIN)
        seen: list[bytes] = []
        for _ in range(20):
            flood.send(N)
            assert epoll.poll(1)
            seen += reader.read()
        while epoll.poll(0):
            seen += reader.read()
    assert len(seen) == 20 * N
    by_cpu: dict[int, list[int]] = {}
    for record in map(decode, seen):
        assert isinstance(record, ReclaimStall)
        by_cpu.setdefault(record.cgroup_id, []).append(record.ts_ns)
    assert by_cpu == {cpu: list(range(sent)) for cpu, sent in flood.sent().items()}
    reader.close()


def test_by_default_a_full_ring_of_an_agent_fits_and_a_flood_does_not(flood: RingFlood) -> None:
    assert READ_AT_MOST * 64 > 256 * 1024
    reader = RingReader(flood.ring)
    flood.send(3 * READ_AT_MOST)
    assert [len(reader.read()) for _ in range(4)] == [READ_AT_MOST] * 3 + [0]
    reader.close()


def test_what_was_given_up_is_no_record_of_a_call() -> None:
    with RingFlood(MIB, discards=3) as flood:
        reader = RingReader(flood.ring, at_most=10)
        flood.send(300)
        sent = sum(flood.sent().values())
        seen = []
        while records := reader.read():
            assert len(records) <= 10
            seen += records
        assert len(seen) == sent < 300
        reader.close()
