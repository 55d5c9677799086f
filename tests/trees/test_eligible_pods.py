"""An agent whose node has pods and none that it may evict says so: in its log, in /readyz and in a metric."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from koordebpf.agent.sinks import Sinks, open_sinks
from koordebpf.policy.evict.candidates.eligibility import Eligibility, eligibility
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.report.http.routes import Health, ReportServer
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.report.recent import Recent
from koordebpf.slo.pods.qos import QOS_LABEL
from koordebpf.state.build import view_of_frame
from koordebpf.state.view import NodeView
from koordebpf.store.open_plans import OpenPlans
from koordebpf.store.sink import EligibilityCounted
from koordebpf.units import NS_PER_S
from tests.contract.test_metrics import get, scrape
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


def test_without_pods_nothing_is_wrong() -> None:
    assert not Eligibility(0, 0, {}).is_none


def test_numbers_are_in_words() -> None:
    found = Eligibility(41, 0, {"system_critical": 1, "other_label": 2, "unlabelled": 38})
    assert found.sentence == (
        "0 of 41 pods may be evicted: 38 have no label koordinator.sh/qosClass=BE,"
        " 2 have another label koordinator.sh/qosClass, 1 is system-critical"
    )
