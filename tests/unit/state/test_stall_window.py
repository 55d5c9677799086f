"""What counts as a full stall for the node's memory, and which samples are kept."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.state.measured import StallParts, StallSample
from koordebpf.state.stalls.windows import LONGEST_NS, StalledPod, extended, full_stall_bounds, stall_sample
from koordebpf.units import NS_PER_S

WINDOW_NS = 10 * NS_PER_S


def parts(**seconds: float) -> StallParts:
    found = {"global_ns": 0.0, "limit_ns": 0.0} | seconds
    return StallParts(WINDOW_NS, **{name: int(each * NS_PER_S) for name, each in found.items()})


NODE = StalledPod("web/api", parts(global_ns=2, other_global_ns=6), some_ratio=0.8, full_ratio=0.8, is_derived=False)


@pytest.mark.parametrize(
    ("pod", "bounds"),
    [
        (NODE, (0.8, 0.8)),
        # No longer than any of its tasks waited for the node, whatever the smoothed share still says.
        (replace(NODE, stall=parts(global_ns=3)), (0.3, 0.3)),
        # At its own limit alone.
        (replace(NODE, stall=parts(limit_ns=8)), (0.0, 0.0)),
        (replace(NODE, stall=parts(limit_ns=1, other_limit_ns=7)), (0.0, 0.0)),
        (replace(NODE, stall=parts(limit_ns=7, compaction_ns=1)), (0.0, 0.0)),
        # At both: what its own limit cost may have been in it.
        (replace(NODE, stall=parts(other_global_ns=8, limit_ns=3)), (0.5, 0.8)),
        # Several tasks on cgroup v1: when all of them wait is unknown.
        (replace(NODE, full_ratio=None, is_derived=True), (0.0, 0.8)),
        # One container of it is known, another one may wait for longer.
        (replace(NODE, full_ratio=0.3, is_derived=True), (0.3, 0.8)),
        (replace(NODE, meets_high=True), (0.0, 0.8)),
    ],
)
def test_bounds_where_every_wait_is_timed(pod: StalledPod, bounds: tuple[float, float]) -> None:
    assert full_stall_bounds(pod, is_whole=True) == pytest.approx(bounds)


@pytest.mark.parametrize(
    ("pod", "bounds"),
    [
        # memory.pressure holds refaults that no program timed.
        (replace(NODE, stall=parts(global_ns=2)), (0.2, 0.8)),
        (replace(NODE, stall=parts(global_ns=8, limit_ns=0.1)), (0.0, 0.8)),
        # What is derived holds what was timed, so that its own limits are out of it.
        (replace(NODE, stall=parts(global_ns=8, limit_ns=1), is_derived=True), (0.7, 0.8)),
    ],
)
def test_bounds_where_reclaim_alone_is_timed(pod: StalledPod, bounds: tuple[float, float]) -> None:
    assert full_stall_bounds(pod, is_whole=False) == pytest.approx(bounds)


def test_a_sample_has_the_worst_pod_of_either_bound() -> None:
    unknown = replace(NODE, name="web/many", full_ratio=None, some_ratio=0.9, stall=parts(other_global_ns=9))
    mild = replace(NODE, name="web/mild", full_ratio=0.1)
    assert stall_sample(7, [mild, unknown, NODE], is_whole=True) == StallSample(
        7, pytest.approx(0.8), pytest.approx(0.9), "web/api", "web/many"
    )
    assert stall_sample(7, [], is_whole=False) == StallSample(7, is_whole=False)


def test_the_window_keeps_a_sample_a_second_and_is_bounded() -> None:
    window: tuple[StallSample, ...] = ()
    for at in range(400):
        window = extended(window, StallSample(at * NS_PER_S, 0.5, 0.5, "a", "a"))
        window = extended(window, StallSample(at * NS_PER_S + 1_000_000, 0.9, 0.9, "a", "a"))
    assert [each.at_ns for each in window] == [at * NS_PER_S for at in range(400 - LONGEST_NS // NS_PER_S - 1, 400)]
    assert {each.ratio for each in window} == {0.5}


def test_a_calm_moment_is_all_that_is_kept_before_the_next_stall() -> None:
    stalled, calm = StallSample(0, 0.5, 0.5, "a", "a"), StallSample(1, 0.0, 0.009, "", "a")
    assert extended((stalled, stalled), calm) == (calm,)
