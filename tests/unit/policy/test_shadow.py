"""Shadow configurations beside the acting one: what they differ in, leads, and regret."""

from __future__ import annotations

import random

import msgspec
import pytest
from msgspec.structs import replace

from koordebpf.decision.what_if.observed import Lifetimes
from koordebpf.decision.what_if.shadow import (
    ActingEvictions,
    Happened,
    KubeletThreshold,
    Regret,
    Shadows,
    available_bytes,
)
from koordebpf.decision.what_if.variant import Variant
from koordebpf.decision.what_if.week import (
    DEFINITIONS,
    KEPT_DAYS,
    Lead,
    NodeCounts,
    ShadowCounts,
    ShadowDay,
    ShadowWeek,
)
from koordebpf.decision.what_if.world import Eviction
from koordebpf.state.measured import MemoryParts, NodeMeasure
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.played_node import Job, jobs_of, play

HOG = [Job("hog", 5, 400, 600, 20), Job("calm", 0, 400, 100, 100)]
EAGER = {"memoryEvictThresholdPercent": 60, "memoryEvictLowerPercent": 50}


def judged(regret: Regret, second: float, *evicted: str, **happened: object) -> ShadowCounts:
    at_ns = int(second * NS_PER_S)
    evictions = [Eviction(at_ns, uid, "default", uid, MIB) for uid in evicted]
    return regret.observe(evictions, Happened(now_ns=at_ns, **happened))  # type: ignore[arg-type]


def total(*counts: ShadowCounts) -> ShadowCounts:
    found = ShadowCounts()
    for each in counts:
        found = found.with_all(each)
    return found


class TestRegret:
    def test_the_same_pod_earlier_is_a_lead_and_later_one_below_zero(self):
        regret = Regret()
        early = total(judged(regret, 0, "a"), judged(regret, 20, acting=("a",)))
        assert (early.evictions, early.same, early.over_acting) == (1, 1, Lead(1, 20.0, 20.0, 20.0))
        late = total(judged(regret, 30, acting=("b",)), judged(regret, 35, "b"))
        assert (late.same, late.over_acting.mean_s) == (1, -5.0)
        assert total(judged(regret, 1000)).avoided == 0

    def test_after_five_minutes_without_a_crossing_it_was_needless(self):
        regret = Regret()
        assert judged(regret, 0, "a").needless == 0
        assert judged(regret, 299).needless == 0
        assert judged(regret, 300).needless == 1
        assert judged(regret, 301).needless == 0

    @pytest.mark.parametrize("event", [{"kubelet": 1}, {"oom_kills": 1}])
    def test_what_came_before_a_crossing_or_kill_was_in_time(self, event):
        regret = Regret()
        judged(regret, 0, "long before")
        found = total(judged(regret, 80, "a"), judged(regret, 90, "b"), judged(regret, 120, **event))
        assert (found.in_time, found.too_late) == (1, 0)
        lead = found.over_kubelet if "kubelet" in event else found.over_oom
        assert lead == Lead(1, 40.0, 40.0, 40.0)  # since the first of those within a minute of each other
        assert total(judged(regret, 420)).needless == 0

    def test_without_an_eviction_before_it_was_too_late(self):
        regret = Regret()
        assert judged(regret, 0, kubelet=1, oom_kills=2).too_late == 3
        assert judged(regret, 10, "a").in_time == 0

    def test_an_oom_kill_comes_before_the_evictions_of_its_round_and_a_crossing_with_them(self):
        assert judged(Regret(), 0, "a", oom_kills=1).too_late == 1
        assert judged(Regret(), 0, "a", kubelet=1).in_time == 1

    def test_a_pod_that_really_was_evicted_is_no_needless_eviction(self):
        regret = Regret()
        judged(regret, 0, "a", "b")
        judged(regret, 5, acting=("a",), really=frozenset({"a"}))
        assert judged(regret, 300).needless == 1

    def test_what_the_acting_one_alone_evicts_is_avoided(self):
        regret = Regret()
        assert judged(regret, 0, acting=("a", "b")).avoided == 0
        judged(regret, 100, "b")
        assert judged(regret, 299).avoided == 0
        assert judged(regret, 300).avoided == 1

    def test_every_eviction_is_counted_in_one_way(self):
        draw = random.Random(3)
        regret, found, acting = Regret(), ShadowCounts(), 0
        for second in range(0, 4000, 10):
            pods = [f"p{draw.randrange(40)}-{second}" for _ in range(draw.randrange(2))]
            theirs = tuple(pods) if draw.random() < 0.3 else tuple(f"q-{second}" for _ in range(draw.randrange(2)))
            acting += len(theirs)
            events = {"kubelet": int(draw.random() < 0.02), "oom_kills": int(draw.random() < 0.02)}
            found = found.with_all(judged(regret, second, *pods, acting=theirs, **events))
        found = found.with_all(judged(regret, 9000))
        assert found.same + found.avoided == acting
        assert found.needless <= found.evictions
        assert found.over_kubelet.count + found.over_oom.count == found.in_time


def test_a_pod_that_a_dry_run_names_each_few_seconds_counts_once_in_five_minutes():
    acting = ActingEvictions()
    assert acting.new(("a", "b"), 0) == ("a", "b")
    assert acting.new(("a", "c"), 4 * NS_PER_S) == ("c",)
    assert acting.new(("a",), 300 * NS_PER_S) == ("a",)


class TestKubelet:
    def node(self, used: int, **parts: int) -> NodeMeasure:
        return NodeMeasure(scope="machine", total_bytes=1000 * MIB, used_bytes=used * MIB)

    def test_it_is_crossed_once_and_again_after_a_minute_above(self):
        kubelet = KubeletThreshold(100 * MIB)
        seen = [(0, 800), (1, 901), (2, 950), (30, 850), (50, 950), (109, 950), (110, 800), (169, 901), (230, 901)]
        crossed = [second for second, used in seen if kubelet.crossed(second * NS_PER_S, self.node(used))]
        assert crossed == [1, 169, 230]

    def test_of_a_cgroup_active_page_cache_counts_as_used(self):
        memory = MemoryParts(
            usage_bytes=950 * MIB,
            inactive_anon_bytes=0,
            active_anon_bytes=500 * MIB,
            inactive_file_bytes=200 * MIB,
            active_file_bytes=250 * MIB,
            unevictable_bytes=0,
        )
        node = NodeMeasure(scope="cgroup", total_bytes=1000 * MIB, used_bytes=500 * MIB, memory=memory)
        assert available_bytes(node) == 250 * MIB
        assert available_bytes(replace(node, scope="machine")) == 500 * MIB

    def test_usage_that_is_not_known_crosses_nothing(self):
        node = NodeMeasure(scope="machine", total_bytes=1000 * MIB, used_bytes=None)
        assert available_bytes(node) is None
        assert not KubeletThreshold(100 * MIB).crossed(0, node)


def judged_node(jobs: list[Job], *variants: Variant, enforce: bool = False, seconds: int = 400) -> ShadowDay:
    shadows = Shadows(variants, 100 * MIB)
    for each in play(jobs, seconds, enforce=enforce):
        shadows.observe(each.tick, each.view, each.decision)
    return shadows.drain("2026-03-01")


class TestShadows:
    def test_beside_a_dry_run_it_says_what_enforcing_would_have_done(self):
        day = judged_node(HOG, Variant("enforced"), Variant("eager", EAGER), Variant("late", {**EAGER, **_at(95)}))
        enforced, eager, late = (day.shadows[name] for name in ("enforced", "eager", "late"))
        assert (day.node.evictions, day.node.really, day.node.kubelet) == (2, 0, 1)  # five minutes on, once more
        assert (enforced.evictions, enforced.same, enforced.in_time, enforced.needless) == (1, 1, 1, 0)
        assert enforced.over_acting.mean_s == 0.0
        # 20 MiB/s: 800 MiB at 24 s, 600 at 14 s, more than 900 at 30 s.
        assert eager.over_acting.mean_s == 10.0
        assert (enforced.over_kubelet.mean_s, eager.over_kubelet.mean_s) == (6.0, 16.0)
        assert (late.evictions, late.in_time, late.too_late) == (1, 0, 1)
        assert day.node.above_s > 300 and enforced.above_s == pytest.approx(1.0)

    def test_an_eviction_that_nothing_came_of_was_needless(self):
        small = [Job("hog", 5, 400, 350, 50), Job("calm", 0, 400, 100, 100)]  # 750 MiB in all
        day = judged_node(small, Variant("enforced"), Variant("eager", EAGER))
        assert day.shadows["eager"].needless == day.shadows["eager"].evictions == 1
        assert day.shadows["enforced"] == ShadowCounts()

    def test_beside_an_agent_that_acts_what_it_would_not_have_done_is_avoided(self):
        day = judged_node(HOG, Variant("same"), Variant("late", {**EAGER, **_at(95)}), enforce=True)
        assert (day.node.evictions, day.node.really) == (1, 1)
        assert (day.shadows["same"].same, day.shadows["same"].avoided, day.shadows["same"].needless) == (1, 0, 0)
        assert (day.shadows["late"].evictions, day.shadows["late"].avoided) == (0, 1)
        assert day.shadows["late"].apart_s > 300

    def test_oom_kills_count_with_the_next_round(self):
        shadows = Shadows([Variant("enforced")], 100 * MIB)
        for number, each in enumerate(play(HOG, 60, enforce=False)):
            if number == 50:
                shadows.oom_killed()
            shadows.observe(each.tick, each.view, each.decision)
        day = shadows.drain("2026-03-01")
        assert day.node.oom_kills == 1
        assert day.shadows["enforced"].over_oom.mean_s == 26.0

    def test_rounds_within_a_tenth_of_a_second_are_passed_over_but_for_evictions(self):
        shadows = Shadows([Variant("enforced")], 100 * MIB)
        rounds = list(play(HOG, 30, enforce=False))
        for each in rounds:
            close = replace(
                each.view, now_ns=rounds[0].view.now_ns + (each.view.now_ns - rounds[0].view.now_ns) // 1000
            )
            shadows.observe(each.tick, close, each.decision)
        assert shadows.drain("").node == NodeCounts(rounds=1)
        later = rounds[-1]
        shadows.observe(later.tick, later.view, later.decision)
        assert shadows.drain("").node.evictions == 1

    def test_a_configuration_that_cannot_evict_says_why(self):
        shadows = Shadows([Variant("odd", {"memoryEvictLowerPercent": 90}), Variant("fine")], 100 * MIB)
        each = next(play(HOG, 1))
        shadows.observe(each.tick, each.view, each.decision)
        assert list(shadows.problems) == ["odd"] and "lower" in shadows.problems["odd"].lower()

    def test_counting_continues_after_a_take(self):
        shadows = Shadows([Variant("enforced")], 100 * MIB)
        days = []
        for each in play(jobs_of(1, 300), 300, enforce=False):
            shadows.observe(each.tick, each.view, each.decision)
            assert shadows.counted("now").node.rounds >= 1
            days.append(shadows.drain("2026-03-01"))
        week = ShadowWeek(settings={"enforced": {}})
        for day in days:
            week = week.with_day(day)
        whole = judged_node(jobs_of(1, 300), Variant("enforced"), seconds=300)
        assert week.total("enforced").evictions == whole.shadows["enforced"].evictions > 0
        assert week.node_total().rounds == 300

    def test_a_release_time_that_is_learnt_is_used(self):
        slow = Shadows([Variant("enforced")], 100 * MIB)
        slow.released_after(20 * NS_PER_S)
        for each in play(HOG, 60, enforce=False):
            slow.observe(each.tick, each.view, each.decision)
        assert slow.drain("").shadows["enforced"].above_s == pytest.approx(20.0, abs=1.5)


def _at(percent: int) -> dict[str, int]:
    return {"memoryEvictThresholdPercent": percent}


class TestWeek:
    def test_days_are_added_up_and_the_oldest_is_dropped(self):
        week = ShadowWeek(settings={"a": {}})
        for day in range(1, 12):
            counts = ShadowCounts(evictions=day, over_oom=Lead().with_one(day))
            for _ in range(2):
                week = week.with_day(ShadowDay(day=f"2026-03-{day:02}", shadows={"a": counts, "b": counts}))
        assert [each.day for each in week.days] == [f"2026-03-{day:02}" for day in range(12 - KEPT_DAYS, 12)]
        assert week.total("a").evictions == 2 * sum(range(4, 12))
        assert week.total("a").over_oom == Lead(16, 120.0, 4.0, 11.0)
        assert set(week.known().days[0].shadows) == {"a"}

    def test_it_is_the_same_after_json(self):
        week = ShadowWeek(settings={"a": {"x": 1}}).with_day(judged_node(HOG, Variant("a"), seconds=60))
        assert msgspec.json.decode(msgspec.json.encode(week), type=ShadowWeek) == week

    def test_it_stays_small(self):
        counts = ShadowCounts(**dict.fromkeys(("evictions", "freed_bytes", "same", "needless", "avoided"), 10**9))
        week = ShadowWeek(settings={f"{number}" * 32: {} for number in range(4)})
        for day in range(10, 30):
            week = week.with_day(ShadowDay(day=f"2026-03-{day}", shadows=dict.fromkeys(week.settings, counts)))
        assert len(msgspec.json.encode(week)) < 20_000

    def test_each_count_is_defined_in_one_sentence(self):
        assert {"needless", "avoided", "too_late", "in_time", "same", "evictions"} <= DEFINITIONS.keys()
        assert all(text.endswith(".") and text.count(". ") == 0 for text in DEFINITIONS.values())


class TestLifetimes:
    def test_a_pod_stays_as_long_as_the_median_of_those_that_grew_older(self):
        lifetimes = Lifetimes()
        ends = {"a": 10, "b": 20, "c": 30, "d": 40}
        for second in range(60):
            there = {name for name, end in ends.items() if 0 < second <= end} | {"daemon"}
            lifetimes.observe(second * NS_PER_S, there, ())
        assert lifetimes.left_ns(5 * NS_PER_S) == 25 * NS_PER_S
        assert lifetimes.left_ns(25 * NS_PER_S) == 15 * NS_PER_S
        assert lifetimes.left_ns(40 * NS_PER_S) is None

    def test_pods_that_were_evicted_or_there_at_first_teach_nothing(self):
        lifetimes = Lifetimes()
        lifetimes.observe(0, {"first"}, ())
        lifetimes.observe(NS_PER_S, {"first", "evicted"}, ())
        lifetimes.observe(2 * NS_PER_S, (), {"evicted"})
        assert lifetimes.left_ns(0) is None

    def test_only_the_last_ones_count(self):
        lifetimes = Lifetimes()
        lifetimes.observe(0, (), ())
        for number in range(700):
            at_ns = number * 100 * NS_PER_S
            lifetimes.observe(at_ns + 1, {f"p{number}"}, ())
            lifetimes.observe(at_ns + 1 + (90 if number < 100 else 10) * NS_PER_S, (), ())
        assert lifetimes.left_ns(20 * NS_PER_S) is None

    def test_a_clock_that_begins_again_starts_again(self):
        lifetimes = Lifetimes()
        lifetimes.observe(100, {"a"}, ())
        lifetimes.observe(5, {"b"}, ())
        lifetimes.observe(6, (), ())
        assert lifetimes.left_ns(0) is None
