"""Killers of pods that Katalyst's plugins ask for: which one a plan names, and what it may pass over."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.kube.cache.objects import (
    ObjectMeta,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from koordebpf.report.pages.plan import plan_page
from koordebpf.state.view import ExecutorName, RefusedEviction
from koordebpf.strategies.katalyst.plugin import SkipSettings
from koordebpf.strategies.katalyst.settings import KillerSettings
from koordebpf.units import NS_PER_S
from tests.strategies.katalyst.test_katalyst_frames import QUIET, Node, forced, kpod, soft
from tests.support.values.builders import NOW_NS, PodAndMeasure, frame, node_plan_of, read_back

BLOCKS = PodDisruptionBudget(
    ObjectMeta(name="all", namespace="kat"),
    PodDisruptionBudgetSpec(selector={}),
    PodDisruptionBudgetStatus(disruptionsAllowed=0),
)


def labelled(made: PodAndMeasure) -> PodAndMeasure:
    return replace(made, pod=replace(made.pod, metadata=replace(made.pod.metadata, labels={"app": "a"})))


def test_each_pod_has_the_killer_of_its_level() -> None:
    killers = KillerSettings("eviction-api-killer", reclaimed="container-killer", dedicated="deletion-api-killer")
    pods = [kpod("batch"), kpod("online", "shared_cores"), kpod("pinned", "dedicated_cores")]
    node = Node(pods, replace(QUIET, killers=killers))
    victims = {each.candidate.uid: each for each in node.answer(forced("p", *node.pods, grace_s=5)).plan.victims}
    assert {uid: each.killer for uid, each in victims.items()} == {"batch": "cri", "online": "api", "pinned": "delete"}
    assert {each.grace_s for each in victims.values()} == {5}


def test_a_container_is_given_the_pods_own_grace_period_where_the_plugin_names_none() -> None:
    node = Node(
        [kpod("batch"), kpod("online", "shared_cores")],
        replace(QUIET, killers=KillerSettings(reclaimed="container-killer")),
    )
    victims = {each.candidate.uid: each for each in node.answer(forced("p", *node.pods)).plan.victims}
    assert (victims["batch"].killer, victims["batch"].grace_s) == ("cri", 30)
    assert (victims["online"].killer, victims["online"].grace_s) == (None, None)


@pytest.mark.parametrize(
    ("killers", "executor", "is_evicted"),
    [
        (KillerSettings("deletion-api-killer"), "api", False),
        (KillerSettings("container-killer"), "api", False),
        (KillerSettings(), "cgroup", False),
        # The API server refuses, and it may know better by then.
        (KillerSettings(), "api", True),
    ],
)
def test_a_soft_eviction_honours_a_disruption_budget_whatever_the_killer(
    killers: KillerSettings, executor: ExecutorName, is_evicted: bool
) -> None:
    node = Node([labelled(kpod("batch"))], replace(QUIET, killers=killers))
    node.more = {"podDisruptionBudgets": (BLOCKS,), "executor": executor}
    node.answer(soft("p", "batch"))
    assert (node.evicted == ["batch"]) is is_evicted


def test_a_forced_pod_is_deleted_past_its_budget_where_the_operator_says_so() -> None:
    pods = [labelled(kpod("batch")), labelled(kpod("free"))]
    node = Node(pods, replace(QUIET, killers=KillerSettings("deletion-api-killer")))
    node.more = {"podDisruptionBudgets": (BLOCKS,)}
    decision = node.answer(forced("p", "batch", "free"))
    assert sorted(node.evicted) == ["batch", "free"]
    assert {each.killer for each in decision.plan.victims} == {"delete"}


def test_of_soft_pods_the_first_that_its_budget_lets_go_is_evicted() -> None:
    node = Node([labelled(kpod("a-blocked")), kpod("free")], replace(QUIET, killers=KillerSettings("container-killer")))
    node.more = {"podDisruptionBudgets": (BLOCKS,)}
    decision = node.answer(soft("p", "a-blocked", "free"))
    assert node.evicted == ["free"]
    (excluded,) = [each for feature in decision.plan.features for each in feature.excluded]
    assert (excluded.uid, excluded.code, excluded.why) == ("a-blocked", "pdb", "blocked by kat/all")


def test_a_pod_that_was_refused_is_not_sent_before_its_time() -> None:
    node = Node([kpod("batch"), kpod("other")])
    node.stays = True
    later = int((node.at_s + 8) * NS_PER_S) + NOW_NS
    node.more = {"refused": (RefusedEviction("batch", later, "429 Too Many Requests"),)}
    node.answer(forced("p", "batch", "other"))
    assert node.made.requests is not None
    (refused,) = node.made.requests.refused
    assert (refused.uid, refused.code) == ("batch", "refused")
    assert node.evicted == ["other"]
    node.round(1)
    assert node.evicted == ["other"]
    node.answer(forced("p", "batch"))
    assert node.evicted == ["other", "batch"]


def test_a_queued_pod_that_says_by_now_that_it_is_to_be_skipped_stays() -> None:
    node = Node([kpod("batch"), kpod("other")], replace(QUIET, skip=SkipSettings(labels=frozenset({"keep"}))))
    node.stays = True
    node.answer(forced("p", "batch"))
    node.evictions = ()  # refused
    made = node.pods["batch"]
    metadata = replace(made.pod.metadata, labels={"keep": ""})
    node.pods["batch"] = replace(made, pod=replace(made.pod, metadata=metadata))
    node.round(1)
    assert node.evicted == ["batch"]


def test_a_pod_without_a_known_cgroup_is_not_handed_to_the_cgroup_killer() -> None:
    node = Node([replace(kpod("batch"), measure=None)], replace(QUIET, killers=KillerSettings("cgroup-killer")))
    node.answer(forced("p", "batch"))
    assert node.made.requests is not None
    assert [(each.uid, each.code) for each in node.made.requests.refused] == [("batch", "no_cgroup")]
    assert node.evicted == []


def test_a_written_plan_and_its_page_name_the_killer() -> None:
    node = Node([kpod("batch")], replace(QUIET, killers=KillerSettings("container-killer")))
    plan = node.answer(forced("p", "batch", grace_s=5)).plan
    (victim,) = read_back(plan).victims
    assert (victim.killer, victim.grace_s) == ("cri", 5)
    page = plan_page(replace(node_plan_of(frame([])), features=plan.features), 10)
    assert "rank 1: its containers are stopped, past PodDisruptionBudgets" in page
    assert "rank 1: its grace period is 5 s" in page
