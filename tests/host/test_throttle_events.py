"""Throttling as the kernel reports it: of the containers that are asked for, and of no other."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator

import pytest

from koordebpf.errors import SupportError
from koordebpf.kernel.bpf.throttle_events import ThrottleEvents
from koordebpf.kernel.cgroup.hierarchy import cgroup_id
from koordebpf.strategies.cpu_burst.measure import ThrottleWatch
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.rigs.burst_pod_node import QUOTA, BurstPodNode
from tests.host.rigs.live_node import or_skipped
from tests.support.nodes import NodeCgroup


@pytest.fixture
def throttled(node: NodeCgroup) -> Iterator[BurstPodNode]:
    made = or_skipped(lambda: BurstPodNode(node))
    yield made
    made.close()


@pytest.fixture
def events() -> Iterator[ThrottleEvents]:
    try:
        made = ThrottleEvents()
    except SupportError as error:
        pytest.skip(f"{OTHER_MACHINE}{error}")
    with made:
        yield made


def ids(node: BurstPodNode) -> list[int]:
    return [cgroup_id(node.file(each, QUOTA).parent) for each in node.containers]


def seen(events: ThrottleEvents, timeout_s: float) -> set[int]:
    select.select([events.fileno()], [], [], timeout_s)
    return events.read()


def test_who_is_asked_for_is_reported_within_a_period(throttled: BurstPodNode, events: ThrottleEvents) -> None:
    first, second = ids(throttled)
    assert events.keep([first]) == 0
    assert not seen(events, 0.3)
    counted = throttled.throttled(throttled.containers[0])
    throttled.burn(0)
    throttled.burn(1)
    assert seen(events, 5) == {first}
    until(lambda: throttled.throttled(throttled.containers[0]) > counted, "the kernel's own count")
    assert events.keep([second]) == 0
    events.read()
    assert seen(events, 5) == {second}
    throttled.calm()
    time.sleep(0.3)
    events.read()
    assert not seen(events, 0.3)


def test_what_there_is_no_room_for_is_counted(events: ThrottleEvents) -> None:
    assert events.keep(range(1, 5001)) == 5000 - 4096
    assert events.keep([5000]) == 0


@pytest.mark.usefixtures("events")  # skipped where there are none
def test_the_thread_wakes_the_loop_and_reads_no_file(throttled: BurstPodNode) -> None:
    woken: list[float] = []
    with ThrottleWatch(throttled.hierarchies.mounts, lambda: woken.append(time.monotonic())) as watch:
        watch.watched = {throttled.path(each): 5_000 for each in throttled.containers}
        watch.start()
        throttled.burn(0)
        until(watch.poll, "a wake")
        assert woken
        throttled.calm()
        until(lambda: not watch.poll(), "no more of them")
        watch.watched = {}
        assert watch.reads == 0
