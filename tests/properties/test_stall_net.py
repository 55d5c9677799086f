"""The stall net for any samples: bounds that are bounds, and a verdict that is what its formula says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from koordebpf.policy.detect.stall_evict import stall_evict
from koordebpf.state.build import view_of_frame
from koordebpf.state.measured import StallParts, StallSample
from koordebpf.state.stalls.windows import StalledPod, extended, full_stall_bounds, stall_sample
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.support.values.builders import NOW_NS, frame, ls_pod, supposed

NS = st.integers(0, 20 * NS_PER_S)
PARTS = st.builds(
    StallParts,
    window_ns=st.just(10 * NS_PER_S),
    global_ns=NS,
    limit_ns=NS,
    compaction_ns=NS,
    other_global_ns=NS,
    other_limit_ns=NS,
)
RATIO = st.floats(0, 1)
PODS = st.builds(
    StalledPod,
    name=st.sampled_from(["a", "b"]),
    stall=PARTS,
    some_ratio=RATIO,
    full_ratio=st.none() | RATIO,
    is_derived=st.booleans(),
    meets_high=st.booleans(),
)
VIEW = view_of_frame(frame([ls_pod("web")], used=700, gates={"StallEvict": True}))


@given(PODS, st.booleans())
def test_the_least_is_no_more_than_the_most_and_both_are_shares(pod, is_whole):
    low, high = full_stall_bounds(pod, is_whole=is_whole)
    assert 0 <= low <= high <= 1


@given(PODS, st.booleans())
def test_a_limit_of_its_own_alone_is_never_a_stall_of_the_node(pod, is_whole):
    own = replace(pod, stall=replace(pod.stall, global_ns=0, other_global_ns=0, compaction_ns=0))
    assert full_stall_bounds(own, is_whole=is_whole)[0] == 0


@given(st.lists(PODS, max_size=5), st.booleans())
def test_a_sample_is_as_bad_as_its_worst_pod(pods, is_whole):
    sample = stall_sample(0, pods, is_whole=is_whole)
    bounds = [full_stall_bounds(pod, is_whole=is_whole) for pod in pods]
    assert sample.ratio == max((low for low, _ in bounds), default=0)
    assert sample.at_most_ratio == max((high for _, high in bounds), default=0)


STEPS = st.lists(st.tuples(st.integers(50, 7000), RATIO), min_size=1, max_size=40)


@given(STEPS, st.integers(1, 99), st.integers(1, 120), st.none() | st.integers(0, 200))
def test_it_fires_exactly_if_every_sample_of_its_time_is_above(steps, percent, seconds, evicted_s):
    at_ns, samples = NOW_NS - sum(step for step, _ in steps[1:]) * NS_PER_MS, []
    for index, (step, ratio) in enumerate(steps):
        at_ns += step * NS_PER_MS if index else 0
        samples.append(StallSample(at_ns, ratio, ratio, "web/web", "web/web"))
    evicted_ns = None if evicted_s is None else NOW_NS - evicted_s * NS_PER_S
    measured = replace(VIEW.measured, stall_window=tuple(samples))
    verdict = stall_evict(supposed(VIEW, measured=measured, lastEvictNs=evicted_ns), percent, seconds)
    since = [each for each in samples if evicted_ns is None or each.at_ns > evicted_ns]
    fires = any(
        NOW_NS - since[first].at_ns >= seconds * NS_PER_S
        and all(each.ratio > percent / 100 for each in since[first:])
        and all(
            later.at_ns - each.at_ns <= 5 * NS_PER_S
            for each, later in zip(since[first:], since[first + 1 :], strict=False)
        )
        for first in range(len(since))
    )
    assert verdict.fires is fires


@given(st.lists(st.tuples(st.integers(1, 3000), RATIO), max_size=60))
def test_the_window_is_in_order_and_bounded(steps):
    window, at_ns = (), 0
    for step, ratio in steps:
        at_ns += step * NS_PER_MS
        window = extended(window, StallSample(at_ns, 0, ratio))
    assert list(window) == sorted(window, key=lambda each: each.at_ns)
    assert len(window) <= 139
