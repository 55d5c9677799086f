"""What `koordebpf pod explain` says of a pod that is trimmed, or whose page cache is limited."""

from __future__ import annotations

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.page_cache.strategy import PageCacheDecision, PageCacheState
from koordebpf.policy.proactive_reclaim.strategy import ReclaimDecision, ReclaimOrder, ReclaimState
from koordebpf.policy.proactive_reclaim.trim import PodTrim
from koordebpf.policy.reconcile.values import CgroupWrite
from koordebpf.report.hooks.pod_settings import PodSettings
from koordebpf.report.hooks.reclaim_settings import with_page_cache, with_reclaim
from koordebpf.state.proactive_reclaim import ReclaimMeasured, TrimmedPod
from koordebpf.units import MIB

GIVEN = [PodSettings(uid, "team", uid) for uid in ("a", "b", "ls")]
MEASURED = ReclaimMeasured(1, tuple(TrimmedPod(uid, 1, f"kubepods/{uid}", 0, 0, 0, 0, 0) for uid in ("a", "b")))


def test_what_is_taken_and_why_nothing_is() -> None:
    decision = ReclaimDecision(
        state=ReclaimState(pods={"a": PodTrim(1, 0, 0), "b": PodTrim(1, 0, 0, hurts=2)}),
        reason="",
        orders=(ReclaimOrder("a", 1, "kubepods/a", 8 * MIB),),
        whys={"a": "step", "b": "rests"},
    )
    a, b, ls = with_reclaim(GIVEN, MEASURED, decision)
    assert (a.path, a.settings[0].file, a.settings[0].value) == ("kubepods/a", "memory.reclaim", "8.0 MiB each 6 s")
    assert (a.settings[0].hook, a.settings[0].source) == ("ProactiveReclaim", "a step")
    assert b.settings[0].value == "nothing"
    assert b.settings[0].source == "it rests; halved 2 times, because it stalled or memory came back"
    assert ls == GIVEN[2]


def test_a_pod_that_ended_has_no_line() -> None:
    decision = ReclaimDecision(state=ReclaimState(), reason="", whys={"a": "floor"})
    assert [each.settings for each in with_reclaim(GIVEN, MEASURED, decision)][1:] == [(), ()]


def test_limits_of_page_cache_have_their_reason() -> None:
    decision = PageCacheDecision(
        state=PageCacheState(),
        reason="pod ls refaults",
        writes=(CgroupWrite("kubepods/a", CgroupFile.MEMORY_HIGH, 64 * MIB),),
        paths={"a": "kubepods/a", "b": "kubepods/b"},
    )
    a, b, _ = with_page_cache(GIVEN, decision)
    (line,) = a.settings
    assert (line.file, line.value, line.source) == ("memory.high", 64 * MIB, "pod ls refaults")
    assert (line.hook, b.settings) == ("BEPageCacheSuppress", ())


def test_before_the_first_decision_nothing_is_said() -> None:
    assert with_reclaim(GIVEN, None, None) == GIVEN
    assert with_page_cache(GIVEN, None) == GIVEN
    assert with_page_cache(GIVEN, PageCacheDecision(state=PageCacheState(), reason="calm")) == GIVEN
