"""Stall shares of any intervals: within their bounds, and a union between its children's largest and their sum."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from koordebpf.events.records import CgroupStall, StallSum
from koordebpf.state.stalls.shares import ShareTable, union_bounds

S = 1_000_000_000
END_S = 40
INTERVALS = st.lists(
    st.tuples(st.integers(0, END_S * 10 - 1), st.integers(1, 60)).map(
        lambda at: (at[0] * S // 10, min((at[0] + at[1]) * S // 10, END_S * S))
    ),
    max_size=6,
)


def union_ns(intervals: list[tuple[int, int]], until_ns: int) -> tuple[int, int, int]:
    """Return the union up to `until_ns` as the kernel side keeps it: sum, last change, how many last."""
    edges = sorted({edge for pair in intervals for edge in pair if edge <= until_ns})
    total, since, running = 0, 0, 0
    for edge in edges:
        now_running = sum(begin <= edge < end for begin, end in intervals)
        if running:
            total += edge - since
        since, running = edge, now_running
    return total, since, running


@settings(max_examples=60)
@given(st.lists(INTERVALS, min_size=1, max_size=4))
def test_a_union_lies_within_its_bounds(children):
    everything = [each for intervals in children for each in intervals]
    table = ShareTable()
    for second in range(END_S + 1):
        rows = []
        for cgroup_id, intervals in enumerate([everything, *children]):
            total, changed, running = union_ns(intervals, second * S)
            rows.append(
                CgroupStall(cgroup_id, StallSum(), StallSum(), some_ns=total, changed_ts_ns=changed, stalled=running)
            )
        table.push(second * S, rows, {})
    parent = table.shares(0, END_S * S)
    below = [share.some for at in range(len(children)) if (share := table.shares(at + 1, END_S * S))]
    if parent is None:
        assert not everything
        assert not below
        return
    low, high = union_bounds(below)
    for name in ("avg10", "avg60", "avg300"):
        share = getattr(parent.some, name)
        assert getattr(low, name) - 1e-6 <= share <= getattr(high, name) + 1e-6
        assert 0 <= share <= 100 + 1e-6
    assert low.total_us <= parent.some.total_us <= high.total_us + len(below)
