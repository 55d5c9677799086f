"""Among equals: the pod that makes others stall, and as few as possible of one owner."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.state.measured import LedgerRow, LedgerView, Party
from koordebpf.state.view import Frame
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.support.values.builders import PodAndMeasure, feature_of, frame, ls_pod, names, plan_of, pod

WEB = ls_pod("web", anon=100)
ENABLED = {"koordinator.sh/eviction-enabled": "true"}


def charged(recorded: Frame, caused_ms: Mapping[str, float], victim: PodAndMeasure = WEB) -> Frame:
    """Return the frame with a ledger: pod name → what `victim` stalled on its account."""
    pods = {each.metadata.name: each for each in recorded.pods}
    stalled = Party(victim.pod.uid, "pod", victim.pod.key, uid=victim.pod.uid)
    rows = tuple(
        LedgerRow(stalled, Party(cause.uid, "pod", cause.key, uid=cause.uid), int(ms * NS_PER_MS), 0, 1)
        for name, ms in caused_ms.items()
        for cause in [pods[name]]
    )
    total_ns = sum(row.ns for row in rows)
    ledger = LedgerView(60 * NS_PER_S, total_ns, 0, rows)
    return replace(recorded, measured=replace(recorded.measured, ledger=ledger))


def order(recorded: Frame, settings: EvictSettings = EvictSettings()) -> list[str]:  # noqa: B008 - frozen
    return [each.name for each in feature_of(recorded, settings).candidates]


class TestAggressor:
    pods = (WEB, pod("large", anon=300), pod("hog", anon=200), pod("small", anon=100))

    def test_the_pod_that_makes_others_stall_is_evicted_before_a_larger_one(self):
        node = charged(frame(self.pods, used=850), {"hog": 500, "small": 20})
        assert order(node) == ["hog", "small", "large"]
        assert names(feature_of(node)) == ["hog"]

    def test_its_share_is_in_the_ranking(self):
        feature = feature_of(charged(frame(self.pods, used=850), {"hog": 500}))
        assert [each.caused_ns for each in feature.candidates] == [500 * NS_PER_MS, 0, 0]
        assert [each.caused_ns for each in feature_of(frame(self.pods, used=850)).candidates] == [None] * 3

    def test_without_a_ledger_or_switched_off_the_largest_is_evicted(self):
        node = charged(frame(self.pods, used=850), {"hog": 500})
        assert order(frame(self.pods, used=850)) == ["large", "hog", "small"]
        assert order(node, EvictSettings(prefer_aggressor=False)) == ["large", "hog", "small"]
        assert order(node, EvictSettings(strict_compat=True)) == ["large", "hog", "small"]

    def test_what_is_too_little_to_be_more_than_chance_changes_nothing(self):
        assert order(charged(frame(self.pods, used=850), {"hog": 9.9}))[0] == "large"
        assert order(charged(frame(self.pods, used=850), {"hog": 10}))[0] == "hog"

    def test_only_stalls_of_latency_sensitive_pods_count(self):
        batch = pod("batch", anon=10)
        node = charged(frame([*self.pods, batch], used=850), {"hog": 500}, victim=batch)
        assert order(node)[0] == "large"

    def test_it_never_crosses_a_priority(self):
        pods = [WEB, pod("low", anon=100, priority=5000), pod("hog", anon=300, priority=5001)]
        node = charged(frame(pods, used=850), {"hog": 5000})
        assert order(node) == ["low", "hog"]
        assert order(node, EvictSettings(across_priorities=True)) == ["hog", "low"]

    def test_it_never_crosses_a_qos_class_either(self):
        # GIVEN two classes of one priority, as MemoryEvict may rank them: Koordinator sorts by size alone
        def member(name: str, anon: int, qos: str) -> PodAndMeasure:
            return pod(name, anon=anon, qos=qos, kube_qos="Burstable", priority=7500, labels=ENABLED)

        pods = [WEB, member("be-1", 400, "BE"), member("ls-1", 300, "LS"), member("be-2", 200, "BE"),
                member("ls-2", 100, "LS")]  # fmt: skip
        strategy = {"enable": True, "memoryEvictThresholdPercent": 80, "evictEnabledPriorityThreshold": 7999}
        plain = frame(pods, used=850, threshold=strategy, gates={"MemoryEvict": True})
        node = charged(plain, {"be-2": 50, "ls-2": 900})

        def ranking(recorded: Frame) -> list[str]:
            return [each.name for each in plan_of(recorded).features[1].candidates]

        assert ranking(plain) == ["be-1", "ls-1", "be-2", "ls-2"]
        # THEN each class changes its own places about
        assert ranking(node) == ["be-2", "ls-2", "be-1", "ls-1"]

    def test_one_that_would_not_be_enough_is_evicted_only_where_its_credit_is_needed(self):
        # 70 MiB are needed; the aggressor gives 20 of them, the large one all: as few as possible go
        pods = [WEB, pod("large", anon=300), pod("hog", anon=20)]
        assert names(feature_of(charged(frame(pods, used=850), {"hog": 500}))) == ["large"]


class TestOwners:
    def test_the_second_of_an_owner_is_evicted_later(self):
        pods = [pod("a-1", anon=100, owner="a"), pod("a-2", anon=90, owner="a"), pod("b-1", anon=80, owner="b")]
        assert order(frame(pods, used=900)) == ["a-1", "b-1", "a-2"]
        assert names(feature_of(frame(pods, used=900))) == ["a-1", "b-1"]
        assert order(frame(pods, used=900), EvictSettings(spread_owners=False)) == ["a-1", "a-2", "b-1"]
        assert order(frame(pods, used=900), EvictSettings(strict_compat=True)) == ["a-1", "a-2", "b-1"]

    def test_the_third_of_an_owner_counts_a_quarter(self):
        pods = [pod(f"a-{n}", anon=101 - n, owner="a") for n in (1, 2, 3, 4)]
        others = [pod(f"o-{anon}", anon=anon, owner=f"o-{anon}") for anon in (30, 20, 10)]
        assert order(frame([*pods, *others], used=900)) == ["a-1", "a-2", "o-30", "a-3", "o-20", "a-4", "o-10"]

    def test_no_much_smaller_pod_is_evicted_for_it(self):
        small = [pod(f"s-{n}", anon=9, owner=f"s-{n}") for n in range(9)]
        pods = [pod("a-1", anon=100, owner="a"), pod("a-2", anon=90, owner="a"), *small]
        assert names(feature_of(frame(pods, used=900))) == ["a-1", "a-2"]

    def test_a_namesake_in_another_namespace_is_another_owner(self):
        pods = [
            pod("x-1", anon=100, owner="a", namespace="x"),
            pod("y-1", anon=90, owner="a", namespace="y"),
            pod("z-1", anon=80, owner="z"),
        ]
        assert order(frame(pods, used=900)) == ["x-1", "y-1", "z-1"]

    def test_it_never_crosses_a_priority(self):
        pods = [pod("a-1", anon=90, owner="a"), pod("a-2", anon=80, owner="a"), pod("b-1", anon=80, priority=5001)]
        assert order(frame(pods, used=900)) == ["a-1", "a-2", "b-1"]

    def test_a_second_aggressor_still_comes_before_the_innocent(self):
        pods = [WEB, pod("a-1", anon=50, owner="a"), pod("a-2", anon=50, owner="a"), pod("b-1", anon=90, owner="b")]
        node = charged(frame(pods, used=900), {"a-1": 300, "a-2": 200})
        assert order(node) == ["a-1", "a-2", "b-1"]

    def test_victims_of_the_feature_before_count(self):
        # GIVEN a BE pod of owner a is evicted for BEMemoryEvict and leaves 100 of 200 MiB open
        def member(name: str, anon: int, owner: str, qos: str = "LS") -> PodAndMeasure:
            kube_qos = "BestEffort" if qos == "BE" else "Burstable"
            return pod(name, anon=anon, qos=qos, kube_qos=kube_qos, priority=5500, labels=ENABLED, owner=owner)

        pods = [member("a-be", 50, "a", "BE"), member("a-ls", 90, "a"), member("b-ls", 80, "b")]
        strategy = {"enable": True, "memoryEvictThresholdPercent": 80, "evictEnabledPriorityThreshold": 7999}
        gates = {"BEMemoryEvict": True, "MemoryEvict": True}
        plan = plan_of(frame(pods, used=900, threshold=strategy, gates=gates))
        assert [names(feature) for feature in plan.features] == [["a-be"], ["b-ls"]]


@pytest.mark.parametrize("executor", ["api", "cgroup"])
def test_the_owner_is_in_the_ranking(executor):
    feature = feature_of(frame([pod("a-1", anon=90, owner="a"), pod("b", anon=80)], used=850, executor=executor))
    assert [each.workload for each in feature.candidates] == ["spark/ReplicaSet/a", None]
