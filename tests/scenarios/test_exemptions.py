"""Whose wish to be spared counts: every pod's, or only that of namespaces which the operator names."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from koordebpf.act.evict.actuator import LastResort
from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.errors import ConfigError
from koordebpf.kube.cache.objects import Namespace, ObjectMeta
from koordebpf.policy.detect import stall_evict
from koordebpf.policy.evict.exemptions import exempt_bytes
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.report.pages.plan import plan_page
from koordebpf.state.build import view_of_frame
from koordebpf.state.measured import StallParts, StallSample
from koordebpf.state.outcome import Result
from koordebpf.state.pods.facts import facts_of_pods
from koordebpf.state.pods.namespaces import ExemptionSettings, LabelExpression, NamespaceSelector, judged, judged_pods
from koordebpf.state.stalls.ledger import is_latency_sensitive
from koordebpf.state.view import Frame
from koordebpf.strategies.cpu_suppress.plan import caused_ratio
from koordebpf.units import MIB, NS_PER_S
from tests.scenarios.test_eviction_eligibility import APP, pdb
from tests.scenarios.test_eviction_order import charged
from tests.support.values.builders import (
    NOW_NS,
    PodAndMeasure,
    feature_of,
    frame,
    ls_pod,
    names,
    node_plan_of,
    plan_of,
    pod,
    why_not,
)
from tests.unit.act.test_executors import Recorder

DAY_S = 86400
KINDS = ("qos_labels", "policies", "budgets", "grace_periods")
OURS = frozenset({"prod-*", "infra"})


def only_ours(*which: str) -> EvictSettings:
    """Return settings by which these exemptions count in the namespaces infra and prod-* alone."""
    return EvictSettings(exemptions=ExemptionSettings(**dict.fromkeys(which, OURS)))


def hog(namespace: str = "tenant", **more: Any) -> PodAndMeasure:
    return pod("hog", anon=400, namespace=namespace, **more)


def beside(each: PodAndMeasure, **more: Any) -> Frame:
    """Return a node that needs one of two pods evicted, the second of them with the better priority."""
    return frame([each, pod("other", anon=300, priority=5999, namespace="infra")], used=900, **more)


def patient(namespace: str) -> PodAndMeasure:
    made = hog(namespace)
    spec = replace(made.pod.spec, terminationGracePeriodSeconds=DAY_S)
    return replace(made, pod=replace(made.pod, spec=spec))


@pytest.mark.parametrize(
    ("namespace", "counts"), [("tenant", False), ("prod-1", True), ("prod-", True), ("infra", True), ("infra-2", False)]
)
class TestNamespaces:
    def test_a_policy(self, namespace: str, counts: bool) -> None:
        feature = feature_of(beside(hog(namespace, policy="[]")), only_ours("policies"))
        assert names(feature) == (["other"] if counts else ["hog"])
        assert why_not(feature) == ({"hog": "policy"} if counts else {})

    def test_a_grace_period(self, namespace: str, counts: bool) -> None:
        (victim,) = plan_of(beside(patient(namespace)), only_ours("grace_periods")).victims
        assert victim.grace_s == (30 if counts else 1)

    def test_a_label(self, namespace: str, counts: bool) -> None:
        feature = feature_of(beside(hog(namespace, qos="LS", kube_qos="Burstable")), only_ours("qos_labels"))
        assert names(feature) == (["other"] if counts else ["hog"])

    def test_a_disruption_budget(self, namespace: str, counts: bool) -> None:
        budget = (pdb(namespace=namespace),)
        recorded = replace(beside(hog(namespace, labels=APP)), podDisruptionBudgets=budget)
        plan = plan_of(recorded, only_ours("budgets"))
        assert [victim.candidate.name for victim in plan.victims] == (["other"] if counts else ["hog"])
        assert [victim.passes_budgets for victim in plan.victims] == [not counts]


def test_by_default_all_of_them_count() -> None:
    for each in (hog(policy="[]"), hog(qos="LS", kube_qos="Burstable")):
        assert names(feature_of(beside(each))) == ["other"]
    feature = feature_of(replace(beside(hog(labels=APP)), podDisruptionBudgets=(pdb(namespace="tenant"),)))
    assert (names(feature), feature.not_honoured) == (["other"], ())


def test_a_label_that_does_not_count_is_replaced_by_the_priority_alone() -> None:
    settings = only_ours("qos_labels")
    for priority, is_evicted in (
        (5999, True),
        (3000, True),
        (6000, False),
        (7500, False),
        (9500, False),
        (None, False),
    ):
        odd = hog(qos="LSR", kube_qos="Guaranteed", priority=priority)
        assert names(feature_of(frame([odd], used=900), settings)) == (["hog"] if is_evicted else []), priority
    # A label about the priority is no priority, and one without any label is judged the same way.
    lifted = hog(qos="LS", priority=5000, labels={"koordinator.sh/priority-class": "koord-prod"})
    lowered = hog(qos="LS", priority=9500, labels={"koordinator.sh/priority-class": "koord-batch"})
    assert names(feature_of(frame([lifted], used=900), settings)) == ["hog"]
    assert names(feature_of(frame([lowered], used=900), settings)) == []
    assert names(feature_of(frame([hog(qos=None)], used=900), settings)) == ["hog"]


def test_what_always_protects_still_does() -> None:
    settings = only_ours(*KINDS)
    system = hog("kube-system", policy="[]", qos="LS")
    critical = hog(priority=2_000_000_000, qos="LS")
    assert names(feature_of(frame([system, critical], used=900), settings)) == []


def test_the_plan_names_each_one_that_was_not_honoured() -> None:
    made = patient("tenant")
    meta = replace(
        made.pod.metadata,
        labels={"koordinator.sh/qosClass": "LS", **APP},
        annotations={"koordinator.sh/eviction-policy": "[]"},
    )
    made = replace(made, pod=replace(made.pod, metadata=meta))
    recorded = replace(beside(made), podDisruptionBudgets=(pdb(namespace="tenant"),))
    plan = plan_of(recorded, only_ours(*KINDS))
    (feature,) = plan.features
    end = "is not honoured in namespace tenant"
    assert [(each.code, each.why) for each in feature.not_honoured] == [
        ("qos_label", f"its label (koordinator.sh/qosClass=LS): by its priority 5000 it is best-effort, {end}"),
        ("policy", f"its annotation koordinator.sh/eviction-policy, which does not list BEMemoryEvict, {end}"),
        ("grace_period", f"its grace period of 86400 s, {end}"),
        ("budget", f"its PodDisruptionBudget (blocked by tenant/exec), {end}"),
    ]
    page = " ".join(plan_page(node_plan_of(recorded, only_ours(*KINDS)), 10).split())
    for each in feature.not_honoured:
        assert f"rank 1: {each.why}" in page


def test_the_memory_that_is_spared_is_counted_by_reason() -> None:
    pods = [
        hog("a", policy="[]"), hog("b", qos="LS"), hog("c", labels=APP), patient("d"), hog("e"),
        hog("f", qos="LS", priority=9500),
    ]  # fmt: skip
    view = view_of_frame(replace(frame(pods, used=900), podDisruptionBudgets=(pdb(namespace="c"),)))
    counted = {"policy": 400 * MIB, "budget": 400 * MIB, "grace_period": 0, "qos_label": 400 * MIB}
    assert exempt_bytes(view, EvictSettings()) == counted
    uncapped = EvictSettings(max_grace_seconds=None)
    assert exempt_bytes(view, uncapped) == counted | {"grace_period": 400 * MIB}
    none_count = only_ours(*KINDS)
    assert exempt_bytes(view, none_count) == dict.fromkeys(counted, 0)


def test_a_budget_that_does_not_count_is_passed_over_by_the_kill_at_once() -> None:
    api, cgroup = Recorder("api", Result.REFUSED), Recorder("cgroup", Result.DONE)
    both = LastResort(api, cgroup, kill_after_s=3600)
    (victim,) = plan_of(beside(hog()), only_ours("budgets")).victims
    refused = both.observe(both.submit(victim, NOW_NS))
    assert refused.retry_at_ns == NOW_NS  # at once
    assert both.submit(victim, NOW_NS + NS_PER_S).executor == "cgroup"
    # Where it counts, the API server has its time.
    other = replace(victim, passes_budgets=False)
    again = LastResort(Recorder("api", Result.REFUSED), cgroup, kill_after_s=3600)
    assert again.observe(again.submit(other, NOW_NS)).retry_at_ns == NOW_NS + 3600 * NS_PER_S


GOLD = NamespaceSelector({"tier": "gold"})
NO_TRIAL = NamespaceSelector(
    {}, (LabelExpression("trial", "DoesNotExist"), LabelExpression("tier", "In", ("gold", "lead")))
)


def by_label(*which: str) -> EvictSettings:
    """Return settings by which these exemptions count in infra, in gold namespaces, and in lead ones on no trial."""
    return EvictSettings(exemptions=ExemptionSettings(**dict.fromkeys(which, frozenset({"infra", GOLD, NO_TRIAL}))))


def where(recorded: Frame, labels: dict[str, str] | None) -> Frame:
    """Return the frame with the labels of namespace tenant; None: they are not known."""
    if labels is None:
        return recorded
    return replace(recorded, namespaces=(Namespace(ObjectMeta(name="tenant", labels=labels or None)),))


@pytest.mark.parametrize(
    ("labels", "counts"),
    [
        ({"tier": "gold"}, True),
        ({"tier": "gold", "trial": "1"}, True),
        ({"tier": "lead"}, True),
        ({"tier": "lead", "trial": ""}, False),
        ({"tier": "tin"}, False),
        ({}, False),
        (None, True),
    ],
)
class TestLabelsOfNamespaces:
    def test_a_policy(self, labels: dict[str, str] | None, counts: bool) -> None:
        feature = feature_of(where(beside(hog(policy="[]")), labels), by_label("policies"))
        assert names(feature) == (["other"] if counts else ["hog"])

    def test_a_grace_period(self, labels: dict[str, str] | None, counts: bool) -> None:
        (victim,) = plan_of(where(beside(patient("tenant")), labels), by_label("grace_periods")).victims
        assert victim.grace_s == (30 if counts else 1)

    def test_a_label(self, labels: dict[str, str] | None, counts: bool) -> None:
        recorded = where(beside(hog(qos="LS", kube_qos="Burstable")), labels)
        assert names(feature_of(recorded, by_label("qos_labels"))) == (["other"] if counts else ["hog"])

    def test_a_disruption_budget(self, labels: dict[str, str] | None, counts: bool) -> None:
        recorded = where(replace(beside(hog(labels=APP)), podDisruptionBudgets=(pdb(namespace="tenant"),)), labels)
        plan = plan_of(recorded, by_label("budgets"))
        assert [victim.candidate.name for victim in plan.victims] == (["other"] if counts else ["hog"])

    def test_the_plan_says_where_they_are_not_known(self, labels: dict[str, str] | None, counts: bool) -> None:
        recorded = where(beside(hog(policy="[]")), labels)
        plan, page = (
            plan_of(recorded, by_label("policies")),
            plan_page(node_plan_of(recorded, by_label("policies")), 10),
        )
        assert plan.undecided_namespaces == (("tenant",) if labels is None else ())
        assert ("every exemption counts in tenant" in page) == (labels is None)
        # The frame as it is written decides the same.
        assert plan_of(decode_frame(encode_frame(recorded), "frame"), by_label("policies")) == plan


def test_a_frame_has_one_namespace_of_a_name() -> None:
    tenant = Namespace(ObjectMeta(name="tenant"))
    twice = replace(beside(hog()), namespaces=(tenant, tenant))
    with pytest.raises(ConfigError, match=r"namespaces\[1\].metadata.name: 'tenant': must be unique"):
        decode_frame(encode_frame(twice), "frame")


class TestALatencySensitiveLabelThatDoesNotCount:
    """Pod `liar` says LS with a best-effort priority; `worker` is best-effort and made it stall."""

    liar = pod("liar", anon=100, namespace="tenant", qos="LS", kube_qos="Burstable", stall=StallParts(1, 500, 0))
    worker, large = pod("worker", anon=200), pod("large", anon=300)
    settings = only_ours("qos_labels")

    def stalled(self) -> Frame:
        return charged(frame([self.liar, self.worker, self.large], used=850), {"worker": 500}, self.liar)

    def test_its_stalls_evict_no_other_pod_first(self) -> None:
        assert names(feature_of(self.stalled())) == ["worker"]
        feature = feature_of(self.stalled(), self.settings)
        assert {each.name: each.caused_ns for each in feature.candidates} == {"large": 0, "worker": 0, "liar": 0}
        assert names(feature) == ["large"]

    def test_its_stalls_are_no_reason_to_hold_the_cpu_of_others(self) -> None:
        frame_of_both = self.stalled()
        assert caused_ratio(view_of_frame(frame_of_both)) > 0
        assert caused_ratio(judged(view_of_frame(frame_of_both), self.settings.exemptions)) == 0

    def test_its_stalls_climb_no_ladder(self) -> None:
        view = judged(view_of_frame(self.stalled()), self.settings.exemptions)
        assert [each.name for each in view.pods if is_latency_sensitive(each)] == []
        assert [each.name for each in view_of_frame(self.stalled()).pods if is_latency_sensitive(each)] == ["liar"]

    def test_before_it_was_measured_it_is_judged_the_same_way(self) -> None:
        facts = facts_of_pods([self.liar.pod, self.worker.pod])
        labels = {"tenant": (("tier", "tin"),)}
        for settings, known, said in ((by_label("qos_labels"), labels, "BE"), (by_label("qos_labels"), {}, "LS")):
            assert [each.koord_qos for each in judged_pods(facts, settings.exemptions, known)] == [said, "BE"]

    def test_the_plan_of_the_stall_net_names_the_label(self) -> None:
        web = ls_pod("web", anon=50)
        recorded = charged(frame([self.liar, web], used=850, gates={"StallEvict": True}), {"liar": 500}, web)
        sample = StallSample(NOW_NS, 0.9, 0.9, "web/web", "web/web", is_whole=True)
        window = tuple(replace(sample, at_ns=NOW_NS - second * NS_PER_S) for second in range(60, -1, -1))
        recorded = replace(recorded, measured=replace(recorded.measured, stall_window=window))
        (net,) = [
            each for each in plan_of(recorded, self.settings).features if each.verdict.feature == stall_evict.FEATURE
        ]
        assert [each.code for each in net.not_honoured if each.code == "qos_label"] == ["qos_label"]

    def test_with_a_higher_priority_it_is_what_it_says(self) -> None:
        prod = pod("liar", anon=100, namespace="tenant", qos="LS", kube_qos="Burstable", priority=9500)
        view = judged(view_of_frame(frame([prod], used=850)), self.settings.exemptions)
        assert [each.koord_qos for each in view.pods] == ["LS"]
