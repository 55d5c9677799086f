"""Protections, budgets and PodDisruptionBudgets: who is passed over, for whom, and what the plan says of it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from koordebpf.kube.cache.objects import (
    ObjectMeta,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.state.view import Frame, PastEviction
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import NOW_NS, feature_of, frame, names, plan_of, pod, why_not

ENABLED = {"koordinator.sh/eviction-enabled": "true"}
BOTH = {"BEMemoryEvict": True, "MemoryEvict": True}
STRATEGY = {"enable": True, "memoryEvictThresholdPercent": 80, "evictEnabledPriorityThreshold": 7999}


def reasons(recorded: Frame, settings: EvictSettings = EvictSettings()) -> dict[str, str]:  # noqa: B008 - frozen
    return {each.name: each.why for each in feature_of(recorded, settings).excluded}


class TestProtected:
    @pytest.mark.parametrize(
        ("changed", "settings", "code"),
        [
            ({"namespace": "kube-system"}, {}, "protected_namespace"),
            ({"namespace": "db"}, {"protected_namespaces": frozenset({"db"})}, "protected_namespace"),
            (
                {"priority_class": "gold"},
                {"protected_priority_classes": frozenset({"gold"})},
                "protected_priority_class",
            ),
            ({"priority": 2_000_000_000}, {}, "system_critical"),
            ({"priority_class": "system-node-critical", "priority": None}, {}, "system_critical"),
        ],
    )
    def test_the_next_one_is_evicted_in_the_same_round(self, changed, settings, code):
        node = frame([pod("safe", **{"anon": 400, "priority": 1, **changed}), pod("hog", anon=100)], used=850)
        feature = feature_of(node, EvictSettings(**settings))
        assert names(feature) == ["hog"]
        assert why_not(feature) == {"safe": code}

    def test_the_agent_itself(self):
        me = pod("agent", anon=400, priority=1)
        node = replace(frame([me, pod("hog", anon=100)], used=850), ownPodUid=me.pod.uid)
        assert (names(feature_of(node)), why_not(feature_of(node))) == (["hog"], {"agent": "own_pod"})

    @pytest.mark.parametrize(
        "settings",
        [
            EvictSettings(),
            EvictSettings(strict_compat=True, across_priorities=True, min_age_ns=0),
            EvictSettings(protected_namespaces=frozenset({"other"}), protected_priority_classes=frozenset({"other"})),
        ],
    )
    def test_no_setting_takes_these_out(self, settings):
        me = pod("agent", anon=400)
        pods = [
            me,
            pod("dns", anon=400, namespace="kube-system"),
            pod("critical", anon=400, priority=2_000_001_000),
            pod("by-name", anon=400, priority_class="system-cluster-critical"),
        ]
        strategy = {**STRATEGY, "evictEnabledPriorityThreshold": 2_147_483_647}
        node = replace(frame(pods, used=990, threshold=strategy, gates=BOTH), ownPodUid=me.pod.uid)
        assert plan_of(node, settings).victims == ()

    def test_a_young_pod_stays_and_one_of_unknown_age_is_not_young(self):
        pods = [
            pod("young", anon=400, start_time="2026-11-21T18:00:31Z"),
            pod("old", anon=100, start_time="2026-11-21T18:00:30Z"),
        ]
        node = replace(frame(pods, used=850), time="2026-11-21T18:01:30Z")
        settings = EvictSettings(min_age_ns=60 * NS_PER_S)
        assert reasons(node, settings) == {"young": "it started 59 s ago, which is less than 60 s"}
        assert names(feature_of(node, settings)) == ["old"]
        assert names(feature_of(node)) == ["young"]  # off by default
        for unknown in ("", "yesterday", None):
            node = replace(frame([pod("p", anon=400, start_time=unknown)], used=850), time="2026-11-21T18:01:30Z")
            assert names(feature_of(node, settings)) == ["p"]
        # In a frame without a time no pod is young.
        assert names(feature_of(frame(pods, used=850), settings)) == ["young"]


def past(seconds_ago: float, *, workload: str | None = None, namespace: str = "spark") -> PastEviction:
    return PastEviction(NOW_NS - int(seconds_ago * NS_PER_S), "gone", namespace, workload)


class TestBudgets:
    pods = (
        pod("a-1", anon=100, owner="a", priority=1),
        pod("a-2", anon=90, owner="a", priority=2),
        pod("b-1", anon=80, owner="b", priority=3, namespace="etl"),
    )

    def test_of_a_workload(self):
        node = frame(self.pods, used=900)  # 120 MiB are needed
        assert names(feature_of(node)) == ["a-1", "a-2"]
        settings = EvictSettings(evictions_per_workload=1)
        feature = feature_of(node, settings)
        assert names(feature) == ["a-1", "b-1"]
        assert why_not(feature) == {"a-2": "workload_budget"}
        assert reasons(node, settings)["a-2"] == "no more than 1 of spark/ReplicaSet/a may go in a minute"
        assert [each.name for each in feature.candidates] == ["a-1", "a-2", "b-1"]

    def test_of_a_namespace(self):
        feature = feature_of(frame(self.pods, used=900), EvictSettings(evictions_per_namespace=1))
        assert (names(feature), why_not(feature)) == (["a-1", "b-1"], {"a-2": "namespace_budget"})

    def test_the_evictions_of_the_last_minute_count(self):
        settings = EvictSettings(evictions_per_workload=2)
        gone = past(59.9, workload="spark/ReplicaSet/a")
        node = replace(frame(self.pods, used=900), evictions=(gone,))
        assert names(feature_of(node, settings)) == ["a-1", "b-1"]
        over = replace(node, evictions=(past(60, workload="spark/ReplicaSet/a"),))
        assert names(feature_of(over, settings)) == ["a-1", "a-2"]
        other = replace(node, evictions=(past(1, workload="etl/ReplicaSet/a", namespace="etl"),))
        assert names(feature_of(other, settings)) == ["a-1", "a-2"]

    def test_what_is_missing_for_a_budget_is_said(self):
        plan = plan_of(frame(self.pods, used=900), EvictSettings(evictions_per_namespace=0))
        assert plan.victims == ()
        assert plan.sentence.endswith("but spark/a-1 may not go: no more than 0 of namespace spark may go in a minute")
        plan = plan_of(frame(self.pods[:2], used=900), EvictSettings(evictions_per_workload=1))
        assert plan.sentence.endswith(
            "; 20.0 MiB will be missing: who is left may not go now; passed over spark/a-2 (no more than 1 of"
            " spark/ReplicaSet/a may go in a minute)"
        )

    def test_a_pod_without_a_controller_is_in_no_workload(self):
        pods = [pod("x", anon=60), pod("y", anon=60)]
        assert names(feature_of(frame(pods, used=900), EvictSettings(evictions_per_workload=1))) == ["y", "x"]


def pdb(
    name: str = "exec",
    *,
    selector: dict[str, Any] | None = {"matchLabels": {"app": "exec"}},  # noqa: B006 - read only
    allowed: int = 0,
    healthy: tuple[int, int] = (2, 2),
    policy: str | None = None,
    namespace: str = "spark",
    generations: tuple[int, int] = (1, 1),
) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        ObjectMeta(name=name, namespace=namespace, uid=name, generation=generations[0]),
        PodDisruptionBudgetSpec(selector, policy),
        PodDisruptionBudgetStatus(generations[1], allowed, *healthy),
    )


APP = {"app": "exec"}


def guarded(*pdbs: PodDisruptionBudget, executor: str = "api", used: int = 850, pods: Any = None) -> Frame:
    pods = pods or [pod("exec", anon=300, labels=APP, priority=1), pod("hog", anon=200)]
    return replace(frame(pods, used=used, executor=executor), podDisruptionBudgets=pdbs)  # type: ignore[arg-type]


class TestDisruptionBudgets:
    def test_who_is_blocked_is_passed_over_while_others_cover_the_need(self):
        feature = feature_of(guarded(pdb()))
        assert names(feature) == ["hog"]
        assert why_not(feature) == {"exec": "pdb"}
        assert [each.disruption for each in feature.candidates] == ["blocked by spark/exec", "allowed"]
        assert plan_of(guarded(pdb())).sentence.endswith(
            "need 70.0 MiB to reach 78 %; passed over spark/exec (blocked by spark/exec: others go first)"
        )

    def test_where_others_do_not_cover_it_the_blocked_one_is_tried_last(self):
        feature = feature_of(guarded(pdb(), used=1000))  # 220 MiB
        assert names(feature) == ["hog", "exec"]
        assert why_not(feature) == {}

    def test_where_it_is_tried_last_who_else_may_not_go_is_said(self):
        pods = [pod("exec", anon=300, labels=APP, priority=1), pod("b-1", anon=200, owner="b", priority=2)]
        node = replace(guarded(pdb(), pods=pods), evictions=(past(1, workload="spark/ReplicaSet/b"),))
        feature = feature_of(node, EvictSettings(evictions_per_workload=1))
        assert (names(feature), why_not(feature)) == (["exec"], {"b-1": "workload_budget"})

    def test_what_is_not_known_says_nothing_and_changes_nothing(self):
        node = replace(guarded(), podDisruptionBudgets=None)
        assert names(feature_of(node)) == ["exec"]
        assert [each.disruption for each in feature_of(node).candidates] == [None, None]
        assert [each.disruption for each in feature_of(guarded()).candidates] == ["allowed", "allowed"]

    def test_a_kill_by_cgroup_asks_no_budget_but_the_plan_shows_it(self):
        feature = feature_of(guarded(pdb(), executor="cgroup"))
        assert names(feature) == ["exec"]
        assert feature.candidates[0].disruption == "blocked by spark/exec"
        assert names(feature_of(guarded(pdb()), EvictSettings(obey_pdbs=False))) == ["exec"]

    def test_victims_of_the_same_round_use_it_up(self):
        pods = [pod(f"exec-{n}", anon=60, labels=APP, priority=n) for n in range(3)] + [pod("hog", anon=60)]
        feature = feature_of(guarded(pdb(allowed=1), used=900, pods=pods))
        assert names(feature) == ["exec-0", "hog"]
        assert why_not(feature) == {"exec-1": "pdb", "exec-2": "pdb"}
        assert [each.disruption for each in feature.candidates] == [
            "allowed", "blocked by spark/exec", "blocked by spark/exec", "allowed",
        ]  # fmt: skip

    def test_so_do_victims_of_the_features_before(self):
        def member(name: str, qos: str, app: dict[str, str], anon: int = 60):
            return pod(name, anon=anon, qos=qos, kube_qos="Burstable", priority=5500, labels={**ENABLED, **app})

        pods = [member("be", "BE", APP), member("ls", "LS", APP, anon=70), member("free", "LS", {})]
        plain = frame(pods, used=880, threshold=STRATEGY, gates=BOTH)  # 100 MiB
        plan = plan_of(replace(plain, podDisruptionBudgets=(pdb(allowed=1),)))
        assert [names(feature) for feature in plan.features] == [["be"], ["free"]]

    def test_two_budgets_on_one_pod_are_refused_whatever_they_allow(self):
        feature = feature_of(guarded(pdb(allowed=5), pdb("other", selector={}, allowed=5)))
        assert feature.candidates[0].disruption == "two PDBs: the API server refuses (500)"
        assert names(feature) == ["hog"]

    @pytest.mark.parametrize(
        ("selector", "is_selected"),
        [
            ({}, True),
            (None, False),
            ({"matchLabels": {"app": "exec", "tier": "x"}}, False),
            ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["exec", "driver"]}]}, True),
            ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["driver"]}]}, True),
            ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
            ({"matchLabels": {"app": "exec"}, "matchExpressions": [{"key": "gpu", "operator": "Exists"}]}, False),
            ({"matchExpressions": [{"key": "app", "operator": "Near", "values": ["exec"]}]}, False),
            ({"matchExpressions": "?"}, False),
        ],
    )
    def test_selectors(self, selector, is_selected):
        (first, _) = feature_of(guarded(pdb(selector=selector))).candidates
        assert first.disruption == ("blocked by spark/exec" if is_selected else "allowed")

    def test_only_its_own_namespace_is_guarded(self):
        assert names(feature_of(guarded(pdb(namespace="etl")))) == ["exec"]

    @pytest.mark.parametrize(
        ("budget", "changed", "said"),
        [
            (pdb(allowed=1), {}, "allowed"),
            (pdb(allowed=-1), {}, "blocked by spark/exec"),
            (pdb(allowed=1, generations=(2, 1)), {}, "blocked by spark/exec, whose status is still worked out"),
            (pdb(policy="AlwaysAllow"), {"ready": False}, "allowed"),
            (pdb(policy="AlwaysAllow"), {"ready": True}, "blocked by spark/exec"),
            (pdb(healthy=(2, 2)), {"ready": False}, "allowed"),
            (pdb(healthy=(1, 2)), {"ready": False}, "blocked by spark/exec"),
            (pdb(healthy=(0, 0)), {"ready": False}, "blocked by spark/exec"),
            (pdb(policy="IfHealthyBudget", healthy=(1, 2)), {"ready": False}, "blocked by spark/exec"),
            (pdb(), {"phase": "Pending"}, "allowed"),
        ],
    )
    def test_as_the_api_server_answers(self, budget, changed, said):
        pods = [pod("exec", anon=300, labels=APP, priority=1, **changed), pod("hog", anon=200)]
        assert feature_of(guarded(budget, pods=pods)).candidates[0].disruption == said

    def test_a_pod_that_is_not_ready_takes_nothing_from_the_budget(self):
        pods = [
            pod("sick", anon=60, labels=APP, priority=1, ready=False),
            pod("exec", anon=60, labels=APP, priority=2),
            pod("hog", anon=60),
        ]
        feature = feature_of(guarded(pdb(allowed=1), used=900, pods=pods))
        assert names(feature) == ["sick", "exec"]

    def test_the_books_balance_where_a_blocked_one_is_evicted(self):
        feature = feature_of(guarded(pdb(), used=1000))
        assert (feature.balance.need, feature.balance.credit, feature.balance.missing) == (220 * MIB, 500 * MIB, 0)
