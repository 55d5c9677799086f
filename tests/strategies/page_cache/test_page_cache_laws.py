"""Laws of BEPageCacheSuppress, for any story of refaults and pods."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.reconcile import DesiredState, wanted_values
from koordebpf.state.build import view_of_frame
from koordebpf.strategies.page_cache.decide import BE_PAGE_CACHE_SUPPRESS, PageCacheState
from koordebpf.strategies.page_cache.values import CachePod, PageCacheMeasured, PageCacheSettings, SensitivePod
from koordebpf.units import NS_PER_S
from tests.support.values.builders import frame

SETTINGS = PageCacheSettings()
COUNTS = st.integers(0, 1 << 40)
BYTES = st.integers(0, 1 << 42)
PODS = st.lists(
    st.builds(
        CachePod,
        uid=st.sampled_from(("a", "b", "c")),
        path=st.just("kubepods/a"),
        usage_bytes=BYTES,
        file_bytes=BYTES,
        activated_pages=st.none() | COUNTS,
        stalled_us=st.none() | COUNTS,
    ),
    unique_by=lambda each: each.uid,
    max_size=3,
)
SENSITIVE = st.dictionaries(st.sampled_from(("x", "y")), st.builds(SensitivePod, COUNTS, BYTES))
LOOKS = st.lists(st.tuples(st.integers(0, 200), PODS, SENSITIVE), max_size=30)


@given(LOOKS)
def test_limits_are_bounded_and_of_best_effort_pods_alone(looks):
    """What may be written, no cap below the floor, no step larger than allowed, and nothing while it rests."""
    state, at_s = PageCacheState(), 1
    made_frame = frame([])
    for seconds, pods, sensitive in looks:
        at_s += seconds
        known = tuple(replace(each, path=f"kubepods/{each.uid}") for each in pods)
        measured = PageCacheMeasured(at_s * NS_PER_S, known, sensitive, ("memory.high",))
        made = BE_PAGE_CACHE_SUPPRESS.decide(view_of_frame(made_frame), measured, state, SETTINGS)
        wanted = wanted_values(DesiredState("", made.writes))
        assert {path for path, _ in wanted} <= {each.path for each in known}
        for pod in known:
            limit = wanted.get((pod.path, CgroupFile.MEMORY_HIGH))
            cap = made.state.pods[pod.uid].cap_bytes
            assert (limit is None) == (cap is None)
            if cap is None:
                continue
            assert cap >= min(SETTINGS.floor_bytes, pod.file_bytes)
            assert limit >= max(pod.usage_bytes - pod.file_bytes, 0) + cap
            before = state.pods.get(pod.uid)
            at_least = pod.file_bytes if before is None or before.cap_bytes is None else before.cap_bytes
            assert cap >= min(at_least, pod.file_bytes) - SETTINGS.step_bytes
        if made.failed or at_s * NS_PER_S < state.rests_until_ns:
            assert made.writes == ()
        assert made.limited_bytes == sum(each.cap_bytes or 0 for each in made.state.pods.values())
        state = made.state
