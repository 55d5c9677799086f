"""When the stall sums are read, and what becomes of shares as sums grow, fall and vanish."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.collect.history import StallReader
from koordebpf.state.measured import NodeMeasure
from koordebpf.state.stalls.windows import NODE
from koordebpf.units import NS_PER_S
from tests.support.played_signals import StalledNode, stall, totals

MACHINE = NodeMeasure("machine", 1000, 0)


class Rig(StalledNode):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reader = StallReader(self.watch, self.collector)

    def read(self, second: float, **counted: int) -> dict[int, int]:
        """Read with these totals; return what each cgroup stalled, in seconds."""
        self.signals.counted = totals(**counted) if counted else b""
        found = self.reader.read(round(second * NS_PER_S))
        return {number: growth.total_ns // NS_PER_S for number, growth in found.items()}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    "moved",
    ["episodes", "compactions", "memstalls", "node_changed_ts_ns", "lost_ends", "missed_runs"],
)
def test_each_total_that_may_have_changed_a_row_makes_it_read_again(rig: Rig, moved: str):
    rig.read(1, episodes=1)
    rig.signals.rows[rig.id("web", "a")] = stall(2 * NS_PER_S, **{"global": 2 * NS_PER_S})
    counted = {"episodes": 1}
    counted[moved] = counted.get(moved, 0) + 1
    assert rig.read(2, **counted) == {rig.id("web", "a"): 2}


def test_what_no_row_depends_on_reads_nothing(rig: Rig):
    rig.read(1, episodes=1)
    rig.read(2, episodes=1, populated=7, oom_kills=1, node_some_ns=5)
    assert rig.signals.reads == 1
    assert rig.reader.by_pod == {}


def test_where_nothing_is_counted_nothing_is_read(rig: Rig):
    assert rig.read(1) == {}
    assert rig.signals.reads == 0
    assert rig.reader.shares_of_node(NS_PER_S, MACHINE) is None


def test_pods_and_node_have_what_their_cgroups_stalled_for_ten_seconds(rig: Rig):
    one, two, other = rig.id("web", "a"), rig.id("web", "b"), rig.id("batch", "c")
    rig.signals.rows = {one: stall(limit=NS_PER_S), two: stall(limit=2 * NS_PER_S), other: stall(compaction=NS_PER_S)}
    rig.read(1, episodes=3)
    assert {uid: growth.total_ns // NS_PER_S for uid, growth in rig.reader.by_pod.items()} == {
        "web": 3, "batch": 1, NODE: 4,
    }  # fmt: skip
    rig.read(10.9, episodes=3)
    assert rig.reader.window()["web"].limit_ns == 3 * NS_PER_S
    rig.read(11, episodes=3)
    assert rig.reader.window() == {}


def test_sums_that_fall_count_from_zero(rig: Rig):
    one = rig.id("web", "a")
    rig.signals.rows[one] = stall(limit=9 * NS_PER_S)
    rig.read(1, episodes=1)
    rig.signals.rows[one] = stall(limit=4 * NS_PER_S)
    assert rig.read(2, episodes=2) == {one: 4}


def test_the_nodes_share_starts_at_zero_where_its_total_falls(rig: Rig):
    rig.read(0, episodes=1)
    rig.read(10, episodes=1, node_some_ns=10 * NS_PER_S)
    before = rig.reader.shares_of_node(10 * NS_PER_S, MACHINE)
    assert before is not None
    assert before.some.avg10 == pytest.approx(63.2, abs=0.1)
    assert before.derived
    # The programs were loaded again: a total of before says nothing of now, and no share is below zero.
    rig.read(11, episodes=1, node_some_ns=0)
    after = rig.reader.shares_of_node(11 * NS_PER_S, MACHINE)
    assert after is not None
    assert after.some.avg10 == 0
    rig.read(12, episodes=1, node_some_ns=NS_PER_S)
    again = rig.reader.shares_of_node(12 * NS_PER_S, MACHINE)
    assert again is not None
    assert again.some.avg10 == pytest.approx(9.5, abs=0.1)
    assert again.some.total_us == 1_000_000


def test_a_node_that_still_stalls_stalls_until_now(rig: Rig):
    rig.read(0, episodes=1)
    rig.read(10, episodes=1, node_changed_ts_ns=5 * NS_PER_S, node_stalled=1)
    share = rig.reader.shares_of_node(10 * NS_PER_S, MACHINE)
    assert share is not None
    assert share.some.total_us == 5_000_000


def test_a_pod_of_two_has_bounds_and_a_container_with_one_task_its_full_share(rig: Rig):
    one, two = rig.id("web", "a"), rig.id("web", "b")
    (rig.root / rig.path("web", "b") / "cgroup.procs").write_text("7\n8\n")
    (rig.root / rig.path("web", "b") / "tasks").write_text("7\n8\n")
    rig.read(0, episodes=1)
    rig.signals.rows = {one: stall(2 * NS_PER_S, limit=2 * NS_PER_S), two: stall(NS_PER_S, limit=NS_PER_S)}
    rig.read(10, episodes=3)
    now_ns = 10 * NS_PER_S
    pod = rig.reader.shares_of_pod("web", now_ns)
    assert pod is not None and pod.some_at_most is not None
    assert (pod.some.total_us, pod.some_at_most.total_us) == (2_000_000, 3_000_000)
    alone, crowded = rig.reader.shares_of(one, now_ns), rig.reader.shares_of(two, now_ns)
    assert alone is not None and crowded is not None
    assert alone.full == alone.some
    assert crowded.full is None
    assert rig.reader.full_of_container("web", now_ns) == alone.some.avg10
    assert rig.reader.full_of_container("batch", now_ns) is None
    assert rig.reader.shares_of_pod("gone", now_ns) is None


def test_a_node_with_a_pressure_file_has_no_derived_share(rig: Rig):
    rig.read(1, episodes=1)
    measured = rig.reader.shares_of_node(NS_PER_S, MACHINE)
    assert measured is not None
    with_psi = NodeMeasure("machine", 1000, 0, psi_some=measured.some)
    assert rig.reader.shares_of_node(NS_PER_S, with_psi) is None
