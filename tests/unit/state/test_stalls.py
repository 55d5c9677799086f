"""Stalls of a window out of the kernel's running sums."""

from koordebpf.events.records import CgroupStall, StallSum
from koordebpf.state.measured import StallParts
from koordebpf.state.stalls.windows import NODE, StallSums, StallWindow

S = 1_000_000_000


def stall(cgroup_id: int, global_ns: int = 0, limit_ns: int = 0, count: int = 1) -> CgroupStall:
    sums = (StallSum(count if ns else 0, ns, ns, 0, ()) for ns in (global_ns, limit_ns))
    return CgroupStall(cgroup_id, *sums)


def test_containers_add_up_to_their_pod_and_all_to_the_node() -> None:
    window = StallWindow(10 * S)
    window.push(1 * S, [stall(1, 100), stall(2, 50), stall(9, 7)], {1: "a", 2: "a"}.get)
    assert window.rows() == {
        "a": StallParts(10 * S, 150, 0, 2, 0),
        NODE: StallParts(10 * S, 157, 0, 3, 0),
    }


def test_only_growth_counts_and_the_window_moves_on() -> None:
    window = StallWindow(10 * S)
    window.push(1 * S, [stall(1, 100)], {1: "a"}.get)
    window.push(2 * S, [stall(1, 100)], {1: "a"}.get)
    window.push(5 * S, [stall(1, 130, count=3)], {1: "a"}.get)
    assert window.rows()["a"] == StallParts(10 * S, 130, 0, 3, 0)
    window.push(11 * S, [stall(1, 130, count=3)], {1: "a"}.get)
    assert window.rows()["a"] == StallParts(10 * S, 30, 0, 2, 0)
    window.push(15 * S, [], {}.get)
    assert window.rows() == {}


def test_waits_at_an_own_limit_count_by_their_growth() -> None:
    window = StallWindow(10 * S)
    window.push(1 * S, [stall(1, limit_ns=100, count=4)], {1: "a"}.get)
    window.push(2 * S, [stall(1, limit_ns=150, count=6)], {1: "a"}.get)
    assert window.rows()["a"] == StallParts(10 * S, 0, 150, 0, 6)
    window.push(11 * S, [stall(1, limit_ns=150, count=6)], {1: "a"}.get)
    assert window.rows()["a"] == StallParts(10 * S, 0, 50, 0, 2)


def test_a_reused_id_counts_from_zero() -> None:
    window = StallWindow(10 * S)
    window.push(1 * S, [stall(1, limit_ns=100, count=9)], {1: "a"}.get)
    window.push(2 * S, [stall(1, limit_ns=30, count=1)], {1: "b"}.get)
    assert window.rows()["b"] == StallParts(10 * S, 0, 30, 0, 1)


def test_every_cause_is_added_and_throttling_only_once() -> None:
    parts = [StallSum(1, ns) for ns in (1, 20, 300, 4000, 50_000, 600_000)]
    sums = StallSums()
    grown = sums.push([CgroupStall(1, *parts), CgroupStall(2, StallSum(), StallSum(), some_ns=9)])
    assert list(grown) == [1]  # the row of a parent, whose tasks did not stall, adds nothing
    assert grown[1].total_ns == 1 + 20 + 300 + 50_000 + 600_000
    window = StallWindow(10 * S)
    window.add(1 * S, grown, {1: "a"}.get)
    assert window.rows()["a"].total_ns == grown[1].total_ns
    assert sums.push([CgroupStall(1, *parts)]) == {}


def test_programs_that_were_reloaded_count_from_zero() -> None:
    sums = StallSums()
    sums.push([CgroupStall(1, StallSum(3, 100), StallSum(), other_limit=StallSum(2, 70))])
    grown = sums.push([CgroupStall(1, StallSum(3, 120), StallSum(), other_limit=StallSum(1, 40))])
    assert (grown[1].global_ns, grown[1].other_limit_ns) == (120, 40)
