"""An agent whose node has pods and none that it may evict says so: in its log, in /readyz and in a metric."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from koordebpf.agent.sinks import Sinks, open_sinks
from koordebpf.policy.decide import decide
from koordebpf.policy.evict.eligibility import Eligibility, eligibility
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.report.http.routes import Health, ReportServer
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.report.recent import Recent
from koordebpf.slo.pods.qos import QOS_LABEL
from koordebpf.state.build import view_of_frame
from koordebpf.state.view import NodeView
from koordebpf.store.open_plans import OpenPlans
from koordebpf.store.sink import EligibilityCounted, ReportFailed, RoundEnded
from koordebpf.units import NS_PER_S
from tests.contract.test_metrics import get, scrape
from tests.support.asked_strategy import ask_alone
from tests.support.ticked_node import Node
from tests.support.values.builders import PodAndMeasure, frame, ls_pod, pod

NONE = "0 of 2 pods may be evicted: 2 have no label koordinator.sh/qosClass=BE"


class Reported:
    """What a ticked agent's own sinks make of its events."""

    def __init__(self, node: Node, *, enforces: bool) -> None:
        plans = OpenPlans("n1", dry_run=not enforces)
        self.health, self.metrics, self._node, self._taken = Health(), AgentMetrics(), node, 0
        self._sinks: Sinks = open_sinks(plans, self.metrics, self.health, Recent(plans))

    def tick(self, seconds: int) -> None:
        for _ in range(seconds):
            self._node.tick(NS_PER_S)
        events = self._node.sink.events
        for event in events[self._taken :]:
            self._sinks.publish(event)
        self._taken = len(events)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(each.levelno, each.getMessage()) for each in caplog.records if "may be evicted" in each.getMessage()]


@pytest.mark.parametrize("enforces", [True, False])
def test_a_node_without_candidates_is_reported_once_and_its_agent_stays_ready(
    node: Node, caplog: pytest.LogCaptureFixture, enforces: bool
) -> None:
    caplog.set_level(logging.INFO, "koordebpf")
    reported = Reported(node, enforces=enforces)
    level = logging.WARNING if enforces else logging.INFO
    # GIVEN pods without the label
    node.list_pods(70, **{QOS_LABEL: None})
    reported.tick(45)
    with closing(ReportServer("127.0.0.1:0", reported.metrics, reported.health)) as server:
        # THEN it is said once, and the agent is as ready as before
        assert said(caplog) == [(level, NONE)]
        assert reported.health.ready(node.clock.ns) == (True, ())
        assert f"[!]eligible pods {NONE}" in get(server, "/readyz?verbose")[1].splitlines()
        found = scrape(server)
        assert found["koordebpf_eligible_pods"] == [({}, 0)]
        assert found["koordebpf_ineligible_pods"] == [({"reason": "unlabelled"}, 2)]

        # WHEN they have another label THEN the other reason is said
        node.list_pods(70, **{QOS_LABEL: "LS"})
        reported.tick(15)
        other = "0 of 2 pods may be evicted: 2 have another label koordinator.sh/qosClass"
        assert said(caplog)[1:] == [(level, other)]

        # WHEN they have the label THEN that is said too, and nothing is wrong
        node.list_pods(70)
        reported.tick(15)
        assert said(caplog)[2:] == [(logging.INFO, "2 of 2 pods may be evicted")]
        assert "eligible pods" not in get(server, "/readyz?verbose")[1]
        assert scrape(server)["koordebpf_eligible_pods"] == [({}, 2)]


def test_a_victim_that_leaves_is_no_news(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "koordebpf")
    reported = Reported(node, enforces=True)
    node.hold(hog=700)
    reported.tick(25)
    assert said(caplog) == []
    counted = [each for each in node.sink.take(EligibilityCounted) if isinstance(each, EligibilityCounted)]
    assert [each.found for each in counted] == [Eligibility(2, 2, {})] * len(counted) != []


def view(*pods: PodAndMeasure, **gates: bool) -> NodeView:
    made = view_of_frame(frame([*pods], used=900))
    return replace(made, feature_gates={**made.feature_gates, **gates})


def test_the_reasons_are_those_of_the_plan() -> None:
    found = eligibility(view(pod("hog"), ls_pod("web"), pod("plain", qos=None)), EvictSettings())
    assert found == Eligibility(3, 1, {"other_label": 1, "unlabelled": 1})


def test_what_passes_does_not_count_against_a_pod() -> None:
    found = eligibility(view(pod("leaves", terminating=True), pod("ended", phase="Succeeded")), EvictSettings())
    assert found == Eligibility(1, 1, {})


def test_where_no_feature_is_on_nothing_is_said() -> None:
    assert eligibility(view(pod("hog"), BEMemoryEvict=False), EvictSettings()) is None


@pytest.mark.parametrize(
    "strategy",
    [{}, {"enable": False}, {"enable": True, "memoryEvictThresholdPercent": 70, "memoryEvictLowerPercent": 80}, None],
)
def test_features_that_the_strategy_switches_off_evict_no_pod_and_the_plan_says_why(
    strategy: dict[str, object] | None,
) -> None:
    # GIVEN two features that are on, and a strategy that switches them off, lacks a value, or is not there
    seen = view_of_frame(frame([pod("one"), ls_pod("two")], used=900, threshold=strategy or {}))
    seen = replace(seen, feature_gates={"BEMemoryEvict": True, "MemoryEvict": True})
    seen = replace(seen, strategy=None) if strategy is None else seen
    # WHEN the pods are counted
    found = eligibility(seen, EvictSettings())
    # THEN none may be evicted, for the reason of the plan
    planned = decide(seen, EvictSettings()).features
    reasons = {each.verdict.reason for each in planned if each.verdict.feature in seen.feature_gates}
    assert found is not None and found.is_none
    assert found.reasons == {planned[0].verdict.skipped: 2}
    assert all(each in found.sentence for each in reasons), found.sentence


def test_a_feature_that_lacks_its_own_value_does_not_count() -> None:
    gates = {"BEMemoryEvict": False, "MemoryEvict": True}
    found = eligibility(view(ls_pod("one"), ls_pod("two"), **gates), EvictSettings())
    assert found is not None
    assert found.sentence == (
        "0 of 2 pods may be evicted: resourceUsedThresholdWithBE is unusable: EvictEnabledPriorityThreshold not config"
    )
    # AND beside one that has all it needs the pods are counted for that one
    assert eligibility(view(pod("be"), ls_pod("web"), MemoryEvict=True), EvictSettings()) == Eligibility(
        2, 1, {"other_label": 1}
    )


@pytest.mark.parametrize("feature", ["BECPUEvict", "CPUAllocatableEvict", "CPUEvict"])
def test_features_of_cpus_that_are_not_measured_evict_no_pod_and_end_no_round(tmp_path: Path, feature: str) -> None:
    # GIVEN an agent whose one feature is for CPU, on a node whose CPUs are not measured
    gates = {"BEMemoryEvict": False, feature: True}
    with closing(Node(tmp_path, gates=gates)) as node:
        # WHEN it counts its pods
        for _ in range(25):
            node.tick(NS_PER_S)
        # THEN each round ends, and the count comes after the end
        kinds = [type(each) for each in node.sink.events]
        assert kinds.count(RoundEnded) == 25
        assert kinds.index(EligibilityCounted) > kinds.index(RoundEnded)
        counted = [each for each in node.sink.events if isinstance(each, EligibilityCounted)]
        said = "0 of 2 pods may be evicted: the node's CPUs were not measured"
        assert {each.found and each.found.sentence for each in counted} == {said}


def test_pods_are_counted_when_the_cpus_are_measured_or_a_period_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, cpus = ask_alone(monkeypatch)
    measured, cpus.measured = cpus.measured, None
    node = Node(tmp_path, gates={"BEMemoryEvict": False, "BECPUEvict": True}, **parts)

    def counted(seconds: int) -> list[bool]:
        """How often the pods are counted, and whether the CPUs were measured."""
        before = len(node.sink.take(EligibilityCounted))
        for _ in range(seconds):
            node.tick(NS_PER_S)
        events = [each for each in node.sink.events if isinstance(each, EligibilityCounted)]
        return ["not measured" not in (each.found.sentence if each.found else "") for each in events[before:]]

    with closing(node):
        # GIVEN a round without a look at the CPUs, as during a crossing THEN the count waits for one with it
        assert counted(3) == []
        cpus.measured = measured
        assert counted(3) == [True]
        # AND where they are never measured it waits for a period, and no longer
        cpus.measured = None
        assert counted(10) == []
        assert counted(10) == [False]


def test_a_report_that_fails_ends_no_round_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a count that always fails
    def broken(*_: object) -> None:
        raise ValueError("zip")

    monkeypatch.setattr("koordebpf.agent.rounds.eligibility", broken)
    with closing(Node(tmp_path)) as node:
        sinks = Sinks((node.sink,), node.clock)
        # WHEN the agent ticks for three periods of it
        for _ in range(25):
            node.tick(NS_PER_S)
        for event in node.sink.take(ReportFailed):
            sinks.publish(event)
        # THEN every round has ended, and the error is counted and logged once
        assert len(node.sink.take(RoundEnded)) == 25
    assert sinks.errors == {"eligible pods": 3}
    failures = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert [each.getMessage() for each in failures] == [
        "eligible pods could not be counted; more of its errors are only counted"
    ]
    assert failures[0].exc_info is not None


def test_without_pods_nothing_is_wrong() -> None:
    assert not Eligibility(0, 0, {}).is_none


def test_numbers_are_in_words() -> None:
    found = Eligibility(41, 0, {"system_critical": 1, "other_label": 2, "unlabelled": 38})
    assert found.sentence == (
        "0 of 41 pods may be evicted: 38 have no label koordinator.sh/qosClass=BE,"
        " 2 have another label koordinator.sh/qosClass, 1 is system-critical"
    )
