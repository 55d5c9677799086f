"""A node that thrashes below every threshold: page cache counts as available, and a latency-sensitive pod stands still.

The stall net is off by default, acts on the pod that the ledger charges, and on no other.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from msgspec.structs import replace

from koordebpf.policy.evict.settings import EvictSettings, StallSettings
from koordebpf.policy.ladder_settings import LadderSettings, Rung
from koordebpf.policy.plan import FeaturePlan
from koordebpf.report.pages.explain import explained
from koordebpf.report.pages.plan import plan_page
from koordebpf.state.measured import LedgerRow, LedgerView, Party, StallParts, StallSample
from koordebpf.state.stalls.windows import StalledPod, stall_sample
from koordebpf.state.view import Frame
from koordebpf.store.audit_record import AuditRecord, OpenPlan
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import (
    NOW_NS,
    PodAndMeasure,
    frame,
    in_flight,
    ls_pod,
    names,
    node_plan_of,
    plan_of,
    pod,
    why_not,
)

ON = {"BEMemoryEvict": True, "StallEvict": True}
WEB = "web/web"


def samples(*ratios: float, every_s: float = 1, until_s: float = 0) -> tuple[StallSample, ...]:
    """Return looks at one pod, the last one `until_s` ago."""
    last_ns = NOW_NS - int(until_s * NS_PER_S)
    return tuple(
        StallSample(last_ns - int(back * every_s * NS_PER_S), ratio, ratio, WEB, WEB)
        for back, ratio in zip(range(len(ratios) - 1, -1, -1), ratios, strict=True)
    )


def charged(**seconds: float) -> LedgerView:
    """Return a ledger in which web/web stalled for so long on account of each."""
    web = Party("uid-web-web", "pod", WEB, uid="uid-web-web")
    rows = [LedgerRow(web, _cause(name), int(each * NS_PER_S), 0, NOW_NS) for name, each in seconds.items()]
    rows.sort(key=lambda row: -row.ns)
    return LedgerView(60 * NS_PER_S, sum(row.ns for row in rows), 0, tuple(rows))


def _cause(name: str) -> Party:
    if name == "unattributed":
        return Party(name, name, name)
    if name == "system":
        return Party("/system.slice", "cgroup", "/system.slice")
    uid = f"uid-{'web' if name == 'web' else 'spark'}-{name}"
    return Party(uid, "pod", name, uid=uid)


PODS = (ls_pod("web", anon=200), pod("reader", anon=20, file=250), pod("idle", anon=300, file=10))
LASTING = samples(*[0.8] * 31)


def thrashing(
    window: Iterable[StallSample] = LASTING,
    ledger: LedgerView | None = None,
    pods: Iterable[PodAndMeasure] = PODS,
    **given: object,
) -> Frame:
    """Return a node at 70 % use on which web/web has stalled for 80 % of the last 30 s, on account of the reader."""
    made = frame(pods, used=700, **{"gates": ON, **given})  # type: ignore[arg-type]
    ledger = charged(reader=12) if ledger is None else ledger
    return replace(made, measured=replace(made.measured, stall_window=tuple(window), ledger=ledger))


def net(recorded: Frame, settings: EvictSettings = EvictSettings()) -> FeaturePlan:  # noqa: B008 - frozen
    (found,) = [each for each in plan_of(recorded, settings).features if each.verdict.feature == "StallEvict"]
    return found


def test_the_pod_is_evicted_on_whose_account_others_stand_still():
    recorded = thrashing()
    feature = net(recorded)
    # The idle one is larger and frees more: that would not help.
    assert (names(feature), why_not(feature)) == (["reader"], {"idle": "no_aggressor"})
    plan = plan_of(recorded)
    assert plan.sentence == (
        "evicting spark/reader (priority 5000, 20.0 MiB): web/web stalls for 80.0 % > 60 % of the time, for 30 s"
        " ≥ 30 s; node at 70 %"
    )
    assert [victim.message for victim in plan.victims] == ["trigger by koordlet feature StallEvict, kill pod: reader"]
    assert plan.victims[0].grace_s is None or plan.victims[0].grace_s <= 30


@pytest.mark.parametrize(
    ("window", "why"),
    [
        (samples(*[0.6] * 31), "web/web stalls for at most 60.0 % ≤ 60 % of the time"),
        (samples(*[0.8] * 30), "web/web stalls for 80.0 % > 60 % of the time, for 29 s of 30 s"),
        (samples(*[0.8] * 20, 0.6, *[0.8] * 20), "web/web stalls for 80.0 % > 60 % of the time, for 19 s of 30 s"),
        # What was between two samples that are far apart is unknown.
        (
            (*samples(*[0.8] * 30, until_s=7), *samples(0.8)),
            "web/web stalls for 80.0 % > 60 % of the time, for 0 s of 30 s",
        ),
        (samples(0.0), "web/web stalls for at most 0.0 % ≤ 60 % of the time"),
        ((StallSample(NOW_NS),), "no latency-sensitive pod stalls for the node's memory"),
    ],
)
def test_it_waits_for_what_is_not_much_or_has_not_lasted(window: tuple[StallSample, ...], why: str) -> None:
    verdict = net(thrashing(window)).verdict
    assert (verdict.fires, verdict.skipped, verdict.reason) == (False, None, why)
    assert plan_of(thrashing(window)).victims == ()


@pytest.mark.parametrize(
    ("window", "word"),
    [
        ((), "unmeasured"),
        (samples(*[0.8] * 31, until_s=6), "unmeasured"),
        # On cgroup v1 the kernel does not say when all tasks of a pod with several wait.
        (tuple(StallSample(each.at_ns, 0.0, 0.9, "", WEB) for each in LASTING), "unknown_stalls"),
    ],
)
def test_what_is_not_known_is_not_zero_and_no_pod_is_evicted_for_it(window: tuple[StallSample, ...], word: str) -> None:
    verdict = net(thrashing(window)).verdict
    assert (verdict.fires, verdict.skipped) == (False, word)
    assert plan_of(thrashing(window)).victims == ()


def test_a_pod_that_stalls_at_its_own_limit_is_its_own_problem():
    stall = StallParts(10 * NS_PER_S, global_ns=0, limit_ns=3 * NS_PER_S, other_limit_ns=6 * NS_PER_S)
    own = StalledPod(WEB, stall, some_ratio=0.9, full_ratio=0.9, is_derived=False)
    looks = tuple(stall_sample(each.at_ns, [own], is_whole=True) for each in LASTING)
    verdict = net(thrashing(looks)).verdict
    assert (verdict.fires, verdict.reason) == (False, "no latency-sensitive pod stalls for the node's memory")


def test_with_the_gate_off_no_pod_is_evicted_and_the_plan_says_so():
    recorded = thrashing(gates={"BEMemoryEvict": True})
    plan = node_plan_of(recorded)
    assert plan.victims == ()
    assert [each.verdict.feature for each in plan.features] == ["BEMemoryEvict"]
    assert (plan.stall_net.skipped, plan.stall_net.fires) == ("gate_off", False)
    assert plan_page(plan, 10).endswith(
        "StallEvict: skipped (gate_off)\n"
        "  stalled        80.0 %  web/web\n"
        "  threshold        60 %\n"
        "  above for        30 s  of 30 s"
    )


def test_the_plan_shows_the_figures_below_the_line_and_the_victim_above():
    below = plan_page(node_plan_of(thrashing(samples(*[0.5] * 31))), 10)
    assert below.endswith(
        "StallEvict\n  stalled        50.0 %  web/web\n  threshold        60 %\n  above for           -  of 30 s"
    )
    plan = node_plan_of(thrashing())
    assert plan.stall_net.fires
    above = plan_page(plan, 10)
    assert "*  1  spark/reader" in above
    assert "spark/idle: less than 6 s of the stalls of latency-sensitive pods are on its\n    account" in above


def test_the_audit_line_is_explained_by_the_stalls_and_not_by_bytes():
    plan = plan_of(thrashing())
    line = OpenPlan(plan, node="n1", dry_run=False, seen_ns=None, decided_ns=NOW_NS, wall_s=0.0).record()
    again = msgspec.json.decode(msgspec.json.encode(line), type=AuditRecord)
    (stall,) = [each.verdict.stall for each in again.features if each.verdict.stall is not None]
    assert (stall.pod, stall.above_s) == (WEB, 30.0)
    text = " ".join(explained(again).split())
    assert (
        "StallEvict: web/web stalls for 80.0 % > 60 % of the time, for 30 s ≥ 30 s; node at 70 %, one pod of 1"
        " candidate would give 20.0 MiB. 1. spark/reader (priority 5000, 20.0 MiB), on whose account others stalled"
        " 12 s, evicted"
    ) in text
    assert "were needed" not in text


def test_a_strategy_that_is_off_switches_the_net_off_too():
    assert net(thrashing(threshold={"enable": False})).verdict.skipped == "disabled"


def test_compat_strict_has_no_such_feature():
    strict = EvictSettings(strict_compat=True, prefer_aggressor=False, spread_owners=False)
    assert net(thrashing(), strict).verdict.skipped == "strict"


@pytest.mark.parametrize(
    "ledger",
    [
        LedgerView(60 * NS_PER_S, 0, 0),
        charged(unattributed=20),
        # A service of the node, or the victim itself, is the cause: another one's end would not help.
        charged(system=20, reader=9),
        charged(web=20, reader=9),
        charged(reader=0.005),
    ],
)
def test_without_a_known_aggressor_no_pod_is_evicted(ledger: LedgerView) -> None:
    feature = net(thrashing(ledger=ledger))
    assert (feature.victims, feature.verdict.fires) == ((), True)
    assert feature.reason == "no best-effort pod that makes latency-sensitive ones stall can be evicted"


def test_a_pod_that_is_gone_hides_no_aggressor():
    assert names(net(thrashing(ledger=charged(gone=50, web=20, reader=12)))) == ["reader"]


def test_of_several_that_cause_about_the_same_the_lowest_priority_is_evicted_alone():
    pods = (*PODS, pod("mild", anon=20, file=100, priority=4000), pod("low", anon=20, file=100, priority=4500))
    feature = net(thrashing(ledger=charged(reader=12, low=7, mild=2), pods=pods))
    assert names(feature) == ["low"]
    assert [each.name for each in feature.candidates] == ["low", "reader"]
    assert why_not(feature) == {"idle": "no_aggressor", "mild": "no_aggressor"}


@pytest.mark.parametrize(
    ("spared", "code"),
    [
        ({"policy": '["BEMemoryEvict"]'}, "policy"),
        ({"terminating": True}, "terminating"),
        ({"priority": 2_000_001_000}, "system_critical"),
    ],
)
def test_who_may_not_be_evicted_otherwise_may_not_here(spared: dict[str, object], code: str) -> None:
    reader = pod("reader", anon=20, file=250, **spared)  # type: ignore[arg-type]
    feature = net(thrashing(pods=(PODS[0], reader)))
    assert (names(feature), why_not(feature)) == ([], {"reader": code})


def test_an_eviction_restarts_the_window():
    assert net(thrashing(last_evict_ns=NOW_NS - 20 * NS_PER_S)).verdict.reason == (
        "web/web stalls for 80.0 % > 60 % of the time, for 19 s of 30 s"
    )
    assert net(thrashing(last_evict_ns=NOW_NS - 31 * NS_PER_S)).verdict.fires


def test_it_waits_for_who_is_leaving_and_for_the_features_before_it():
    leaving = net(thrashing(pending=[in_flight(PODS[2], credit=300, seconds_ago=40)]))
    assert (names(leaving), leaving.reason) == ([], "300 MiB is already coming back from spark/idle")
    above = thrashing(threshold={"enable": True, "memoryEvictThresholdPercent": 60})
    assert (names(net(above)), net(above).reason) == ([], "the victims of the features before it cover the need")


def test_the_settings_say_how_much_and_how_long():
    mild = EvictSettings(stall=StallSettings(full_percent=40, seconds=10))
    assert names(net(thrashing(samples(*[0.5] * 11)), mild)) == ["reader"]
    assert net(thrashing(samples(*[0.5] * 10)), mild).victims == ()


def test_the_milder_rungs_take_the_page_cache_of_the_aggressor_and_no_more_than_a_tenth():
    ladder = LadderSettings(rungs=frozenset({Rung.RECLAIM, Rung.FREEZE, Rung.EVICT}))
    rungs = {each.rung: each for each in plan_of(thrashing(), EvictSettings(ladder=ladder)).ladder}
    assert [(each.name, each.reclaim_bytes) for each in rungs[Rung.RECLAIM].actions] == [("reader", 100 * MIB)]
    assert [each.name for each in rungs[Rung.FREEZE].actions] == ["reader"]
    small = (PODS[0], pod("reader", anon=200, file=30))
    rungs = {each.rung: each for each in plan_of(thrashing(pods=small), EvictSettings(ladder=ladder)).ladder}
    assert [each.reclaim_bytes for each in rungs[Rung.RECLAIM].actions] == [30 * MIB]
