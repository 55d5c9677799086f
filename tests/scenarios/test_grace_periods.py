"""How long a victim has to end, and which pod is evicted while an earlier one does not end."""

from __future__ import annotations

from msgspec.structs import replace

from koordebpf.kube.cache.objects import Pod
from koordebpf.policy.decide import decide
from koordebpf.policy.evict.pending import EvictedPods, overdue_plan
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import Plan
from koordebpf.state.amount import MEMORY
from koordebpf.state.build import view_of_frame
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import Frame, NodeView
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import (
    NOW_NS,
    PodAndMeasure,
    feature_of,
    frame,
    in_flight,
    names,
    plan_of,
    pod,
    supposed,
)

DAY_S = 86400
SETTINGS = EvictSettings()


def asking(each: PodAndMeasure, seconds: int | None, deleted_s: int | None = None) -> PodAndMeasure:
    """Return the pod with this terminationGracePeriodSeconds, deleted with that grace period where it is given."""
    made: Pod = replace(each.pod, spec=replace(each.pod.spec, terminationGracePeriodSeconds=seconds))
    if deleted_s is not None:
        meta = replace(made.metadata, deletionTimestamp="2026-01-01T00:00:00Z", deletionGracePeriodSeconds=deleted_s)
        made = replace(made, metadata=meta)
    return replace(each, pod=made)


def hog(seconds: int | None = DAY_S, deleted_s: int | None = None) -> PodAndMeasure:
    return asking(pod("hog", anon=400, priority=5000), seconds, deleted_s)


def others(count: int = 3) -> list[PodAndMeasure]:
    return [pod(f"other-{n}", anon=60, priority=5500) for n in range(count)]


def graces(recorded: Frame, settings: EvictSettings = SETTINGS) -> list[int | None]:
    return [victim.grace_s for victim in plan_of(recorded, settings).victims]


class TestTheCap:
    def test_who_asks_for_more_gets_half_a_minute(self) -> None:
        assert graces(frame([hog()], used=900)) == [30]

    def test_it_is_never_longer_than_the_pods_own(self) -> None:
        for own_s in (None, 0, 1, 29, 30):
            assert graces(frame([hog(own_s)], used=900)) == [None]

    def test_an_operator_may_set_another_one_or_none(self) -> None:
        assert graces(frame([hog(20)], used=900), EvictSettings(max_grace_seconds=5)) == [5]
        assert graces(frame([hog()], used=900), EvictSettings(max_grace_seconds=None)) == [None]

    def test_other_executors_know_no_grace_period(self) -> None:
        assert graces(frame([hog()], used=900, executor="cgroup")) == [None]

    def test_a_pod_evicted_for_what_was_requested_keeps_its_time(self) -> None:
        strategy = {
            "enable": True, "memoryAllocatableEvictThresholdPercent": 80, "memoryAllocatableEvictLowerPercent": 70,
            "allocatableEvictPriorityThreshold": 5999,
        }  # fmt: skip
        asks = pod("asks", priority=5000, labels={"koordinator.sh/eviction-enabled": "true"},
                   requests={"kubernetes.io/batch-memory": "900Mi"})  # fmt: skip
        recorded = frame(
            [asking(asks, DAY_S)], used=100, threshold=strategy, gates={"MemoryAllocatableEvict": True},
            allocatable={"kubernetes.io/batch-memory": "1000Mi"},
        )  # fmt: skip
        assert graces(recorded) == [None]


class TestDeletedWithAnEndlessGracePeriod:
    def test_it_is_waited_for_at_first(self) -> None:
        leaving = hog(deleted_s=DAY_S)
        for seconds_ago in (0, 120):
            recorded = frame(
                [leaving, *others()], used=900, pending=[in_flight(leaving, credit=400, seconds_ago=seconds_ago)]
            )
            assert names(feature_of(recorded)) == []

    def test_then_it_is_hurried_before_its_neighbours_go(self) -> None:
        leaving = hog(deleted_s=DAY_S)
        recorded = frame([leaving, *others()], used=900, pending=[in_flight(leaving, credit=400, seconds_ago=121)])
        assert (names(feature_of(recorded)), graces(recorded)) == (["hog"], [30])

    def test_who_cannot_be_hurried_is_left_alone(self) -> None:
        leaving = hog(deleted_s=30)
        recorded = frame([leaving, *others()], used=900, pending=[in_flight(leaving, credit=400, seconds_ago=121)])
        assert "hog" not in names(feature_of(recorded))
        endless = hog(deleted_s=DAY_S)
        recorded = frame([endless, *others()], used=900, pending=[in_flight(endless, credit=400, seconds_ago=121)])
        assert "hog" not in names(feature_of(recorded, EvictSettings(max_grace_seconds=None)))


class Late:
    """A hog that was evicted through the API server `seconds_ago`, and what is done about it."""

    def __init__(self, seconds_ago: float, *, grace_s: int = 30, kill_after_s: int = 20, used: int = 900) -> None:
        self.hog = hog(grace_s)
        recorded = frame([self.hog, *others()], used=used)
        sent_ns = NOW_NS - int(seconds_ago * NS_PER_S)
        self.view: NodeView = supposed(
            view_of_frame(recorded), pending=(in_flight(self.hog, credit=400, seconds_ago=seconds_ago),)
        )
        first = decide(view_of_frame(frame([self.hog, *others()], used=900)), SETTINGS)
        (victim,) = first.victims
        self.kill_after_ns = kill_after_s * NS_PER_S
        self.evicted = EvictedPods().sent("BEMemoryEvict", victim, self.view, sent_ns)

    def answered(self, result: Result = Result.DONE, executor: str = "api") -> Late:
        answer = Outcome(self.hog.pod.uid, "spark", "hog", executor, result, "", 0, sent_ns=1)
        self.evicted = self.evicted.answered(answer)
        return self

    def plan(self) -> Plan | None:
        plan = decide(self.view, SETTINGS)
        return overdue_plan(
            self.view, plan, self.evicted, kill_after_ns=self.kill_after_ns, pending_max_ns=SETTINGS.pending_max_ns
        )


class TestKillAfter:
    def test_it_is_killed_after_its_grace_period_and_before_another_pod_is_evicted(self) -> None:
        assert Late(29.9).answered().plan() is None
        plan = Late(30).answered().plan()
        assert plan is not None
        assert [victim.candidate.name for victim in plan.victims] == ["hog"]
        assert plan.victims[0].candidate.of(MEMORY).released == 400 * MIB
        assert plan.sentence == (
            "killing spark/hog, which was evicted 30 s ago and still holds 400 MiB; no other pod is evicted before that"
        )

    def test_it_has_kill_after_at_least(self) -> None:
        assert Late(39, kill_after_s=40).answered().plan() is None
        assert Late(40, kill_after_s=40).answered().plan() is not None

    def test_no_grace_period_is_longer_than_a_release_is_waited_for(self) -> None:
        # GIVEN a cap of 30 s, which is what was asked for
        assert Late(30, grace_s=DAY_S).answered().plan() is not None

    def test_who_was_not_evicted_is_not_killed(self) -> None:
        assert Late(60).plan() is None  # no answer yet
        for result in (Result.REFUSED, Result.FAILED, Result.GONE):
            assert Late(60).answered(result).plan() is None
        assert Late(60).answered().answered(Result.DONE, "cgroup").plan() is None  # killed already

    def test_no_pod_is_killed_while_the_node_is_not_short(self) -> None:
        assert Late(60, used=500).answered().plan() is None
