"""A node whose memory cannot be true, or cannot be read: nothing is evicted, it is reported, and no tick ends."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.errors import KernelFileError
from koordebpf.kernel.host.support import support_of_node_usage
from koordebpf.kernel.io.degraded import degradations
from koordebpf.kernel.proc.meminfo import Meminfo, MeminfoValues, implausible
from koordebpf.policy.guards import GuardLimits, closed_guards
from koordebpf.state.measured import NodeMeasure
from koordebpf.store.sink import PlanDecided, RoundEnded, TickEnded
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.support.played_signals import StalledNode
from tests.support.ticked_node import Node

GIB = 1 << 30
GOOD = "MemTotal: 4194304 kB\nMemFree: 1000 kB\nMemAvailable: 1048576 kB\nSwapTotal: 8 kB\nSwapFree: 4 kB\n"
# As lxcfs showed them: linuxcontainers/lxcfs 84, 115 and 389; of a kernel before 3.14.
CASES = {
    "available": (GOOD.replace("1048576", "9437184"), "MemAvailable 9.0 GiB > MemTotal 4.0 GiB"),
    "free": (GOOD.replace("1000", "8388608"), "MemFree 8.0 GiB > MemTotal 4.0 GiB"),
    "swap": (GOOD.replace("SwapFree: 4 ", "SwapFree: 4096 "), "SwapFree 4.0 MiB > SwapTotal 8.0 KiB"),
    "huge pages": (GOOD + "Hugetlb: 8388608 kB\n", "Hugetlb 8.0 GiB > MemTotal 4.0 GiB"),
    "zero": ("MemTotal: 0 kB\nMemFree: 0 kB\nMemAvailable: 0 kB\n", "MemTotal is 0"),
    "negative": ("MemTotal: 0 kB\nMemFree:  -766260 kB\nMemAvailable:  -766260 kB\n", "must have a row MemFree"),
    "not available": ("MemTotal: 4194304 kB\nMemFree: 900000 kB\n", "must have a row MemAvailable"),
}


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    (tmp_path / "meminfo").write_text(GOOD)
    return tmp_path / "meminfo"


@pytest.fixture
def collector(tmp_path: Path, meminfo: Path) -> Iterator[MemoryCollector]:
    with contextlib.closing(StalledNode(tmp_path / "node", 2)) as made:
        scope = made.watch.scope
        with contextlib.closing(
            MemoryCollector(scope, made.signals, made.watch.index, made.clock, meminfo)
        ) as collector:
            yield collector


@pytest.mark.parametrize("case", CASES)
def test_it_is_a_problem_that_is_logged_once_and_ends(
    collector: MemoryCollector, meminfo: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    text, said = CASES[case]
    # GIVEN a node that could be read
    assert (collector.node().used_bytes, collector.problem) == (3 * GIB, None)
    # WHEN its file is a container's
    meminfo.write_text(text)
    with caplog.at_level(logging.WARNING):
        nodes = [collector.node() for _ in range(3)]
    # THEN
    assert collector.problem is not None and said in collector.problem
    assert said in degradations()[str(meminfo)]
    assert sum("nothing is evicted" in record.getMessage() for record in caplog.records) == 1
    for node in nodes:
        assert node.used_bytes is not None and 0 <= node.used_bytes <= max(node.total_bytes, 1)
        assert msgspec.json.decode(msgspec.json.encode(node), type=NodeMeasure) == node
    # WHEN it is the machine's own again
    meminfo.write_text(GOOD)
    assert (collector.node().used_bytes, collector.problem) == (3 * GIB, None)
    assert str(meminfo) not in degradations()


@pytest.mark.parametrize("case", CASES)
def test_doctor_says_that_the_nodes_usage_is_not_known(meminfo: Path, case: str) -> None:
    text, said = CASES[case]
    assert support_of_node_usage(meminfo).works
    meminfo.write_text(text)
    row = support_of_node_usage(meminfo)
    assert not row.works
    assert str(meminfo) in row.reason and said in row.reason


sizes = st.one_of(st.integers(0, 1 << 24), st.integers(0, 10**20))


@given(total=sizes, free=sizes, available=sizes, swap=st.tuples(sizes, sizes), huge=sizes)
def test_whatever_it_says_what_is_written_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, total: int, free: int, available: int, swap: tuple[int, int], huge: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "meminfo"
    rows = {"MemTotal": total, "MemFree": free, "MemAvailable": available}
    rows |= {"SwapTotal": swap[0], "SwapFree": swap[1], "Hugetlb": huge}
    path.write_text("".join(f"{name}: {size} kB\n" for name, size in rows.items()))
    odd = [KernelFileError] if max(total, free, available) > 1 << 50 else []  # above 1 EiB
    with Meminfo(path) as meminfo, contextlib.suppress(*odd):
        values = meminfo.read()
        node = NodeMeasure("machine", values.mem_total_bytes, values.used_bytes)
        assert msgspec.json.decode(msgspec.json.encode(node), type=NodeMeasure) == node
        assert msgspec.json.decode(msgspec.json.encode(values), type=MeminfoValues) == values
        assert 0 <= values.used_bytes <= values.mem_total_bytes
        assert implausible(msgspec.structs.replace(values, problem=None)) is None or total == 0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with contextlib.closing(Node(tmp_path)) as made:
        yield made


@pytest.mark.parametrize("name", ["memory.stat", "memory.current", "memory.max"])
def test_a_node_cgroup_that_is_odd_closes_a_guard_and_no_tick_ends(node: Node, name: str) -> None:
    # GIVEN an agent, and a node above its threshold whose own file is odd
    node.tick(NS_PER_S)
    node.hold(hog=700)
    good = (node.top / name).read_text()
    (node.top / name).write_bytes(b"\xff odd\n")
    # WHEN it looks
    for _ in range(3):
        node.tick(NS_PER_S)
    # THEN it evicts nothing, and says why
    assert len(node.sink.take(TickEnded)) == 4
    assert node.sink.take(PlanDecided) == []
    assert node.collector.problem is not None and name in node.collector.problem
    (*_, last) = node.sink.take(RoundEnded)
    assert isinstance(last, RoundEnded)
    assert last.tick.guards.node_problem == node.collector.problem
    assert "node_implausible" in [guard.code for guard in closed_guards(last.tick.guards, GuardLimits())]
    # WHEN it can be read again
    (node.top / name).write_text(good)
    node.tick(2 * NS_PER_S)
    node.tick(10 * NS_PER_MS)
    assert len(node.sink.take(PlanDecided)) >= 1
    assert node.collector.problem is None
