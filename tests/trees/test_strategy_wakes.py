"""When a strategy that asked for a round gets it, in a whole agent: with the CPUs, if it needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordebpf.store.sink import RoundEnded
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.support.asked_strategy import AskedStrategy, Cpus, ask_alone
from tests.support.ticked_node import Node

WAKE_NS = 300 * NS_PER_MS
Start = Callable[..., tuple[Node, Cpus]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    nodes: list[Node] = []

    def _start(*asked: AskedStrategy) -> tuple[Node, Cpus]:
        parts, cpus = ask_alone(monkeypatch, *asked)
        nodes.append(Node(tmp_path, **parts))
        nodes[-1].tick(0)
        return nodes[-1], cpus

    yield _start
    for node in nodes:
        node.close()


@pytest.fixture
def with_cpu() -> AskedStrategy:
    strategy = AskedStrategy(needs_cpu=True)
    strategy.wake_after_ns = WAKE_NS
    return strategy


def ages(node: Node, strategy: AskedStrategy) -> list[int]:
    """Return in how many milliseconds before now it was asked."""
    return [(node.clock.ns - view.now_ns) // NS_PER_MS for view in strategy.views]


def test_it_is_asked_when_it_wanted_though_the_cpus_were_measured_just_before(
    start: Start, with_cpu: AskedStrategy
) -> None:
    node, cpus = start(with_cpu)
    assert node.tick(WAKE_NS - 1) == 1
    assert len(with_cpu.views) == 1
    node.tick(1)
    assert ages(node, with_cpu) == [300, 0]
    assert all(view.cpu is not None for view in with_cpu.views)
    assert cpus.looks == 2


def test_a_round_without_the_cpus_takes_no_wake_away(start: Start, with_cpu: AskedStrategy) -> None:
    node, _ = start(with_cpu)
    node.hold(hog=700)
    node.tick(10 * NS_PER_MS)  # above the threshold: there is no time for the CPUs
    (*_, last) = node.sink.take(RoundEnded)
    assert isinstance(last, RoundEnded)
    assert last.view.cpu is None
    node.hold(hog=300)
    assert node.tick(200 * NS_PER_MS) <= 90 * NS_PER_MS
    node.tick(90 * NS_PER_MS)
    assert ages(node, with_cpu) == [300, 0]


def test_a_wake_of_another_strategy_takes_none_away(start: Start, with_cpu: AskedStrategy) -> None:
    other = AskedStrategy("other", needs_cpu=False)
    other.wake_after_ns = 100 * NS_PER_MS
    node, cpus = start(with_cpu, other)
    for _ in range(3):
        node.tick(100 * NS_PER_MS)
    assert ages(node, other) == [300, 200, 100, 0]
    assert ages(node, with_cpu) == [300, 0]
    assert cpus.looks == 2


def test_while_the_cpus_cannot_be_measured_it_waits_and_the_agent_rests(start: Start, with_cpu: AskedStrategy) -> None:
    node, cpus = start(with_cpu)
    cpus.measured, there = None, cpus.measured
    node.sink.events.clear()
    due_ns, since_ns = WAKE_NS, node.clock.ns
    while node.clock.ns < since_ns + 3 * NS_PER_S:
        due_ns = node.tick(due_ns)
        assert due_ns > 0
    assert len(with_cpu.views) == 1
    assert len(node.sink.take(RoundEnded)) <= 5
    cpus.measured, since_ns = there, node.clock.ns
    while len(with_cpu.views) == 1:
        due_ns = node.tick(due_ns)
    assert node.clock.ns - since_ns <= NS_PER_S
    assert ages(node, with_cpu)[-1] == 0


def test_one_that_wants_no_round_any_more_is_not_woken(start: Start, with_cpu: AskedStrategy) -> None:
    node, cpus = start(with_cpu)
    with_cpu.wake_after_ns = None
    node.tick(WAKE_NS)
    looks = cpus.looks
    node.tick(WAKE_NS)
    node.tick(WAKE_NS)
    assert len(with_cpu.views) == looks == cpus.looks
