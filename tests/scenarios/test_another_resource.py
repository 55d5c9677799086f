"""A resource that no module knows, inodes of a pod's file system, with a feature that evicts for it."""

from __future__ import annotations

import json

import msgspec
from msgspec.structs import replace
from prometheus_client.core import CollectorRegistry
from prometheus_client.exposition import generate_latest

from koordebpf.policy.decide import decide
from koordebpf.policy.detect.verdict import Need, UseEvidence, Verdict
from koordebpf.policy.evict.all_features import FEATURES
from koordebpf.policy.evict.by_feature import candidates_of
from koordebpf.policy.evict.features import Feature, Ranking
from koordebpf.policy.evict.ranking import as_candidates, be_order
from koordebpf.policy.evict.resources import Relief
from koordebpf.policy.evict.round import Round
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.ladder_settings import Rung
from koordebpf.policy.plan import Balance, Holding, Plan
from koordebpf.report.ended_shortages import EndedShortages
from koordebpf.report.pages.explain import decode_audit, explained
from koordebpf.report.pages.plan import plan_page
from koordebpf.report.prom.decision import DecisionMetrics
from koordebpf.state.amount import Amount, Dimension, Resource
from koordebpf.state.build import view_of_frame
from koordebpf.state.view import NodeView, PendingRelease, PodView
from koordebpf.store.audit_record import OpenPlan
from tests.support.values.builders import NOW_NS, PodAndMeasure, frame, node_plan_of, pod, read_back

HELD = {"uid-spark-few": 200, "uid-spark-many": 5_000, "uid-spark-some": 900, "uid-web-api": 3_000}
CAPACITY = 10_000

# The feature: all that a new resource takes.
INODES = Resource("inodes")
USED_INODES = Dimension("used inodes", INODES, is_use=True)


def held(pod: PodView) -> int:
    return HELD.get(pod.uid, 0)


def judge(view: NodeView, settings: EvictSettings) -> Verdict:
    used = sum(map(held, view.pods))
    use = UseEvidence(INODES, CAPACITY, used, used * 100 // CAPACITY, 80, 70, 8_000, 7_000)
    if used < 8_000:
        return Verdict("InodesEvict", False, f"{used * 100 // CAPACITY} % of the inodes are used < 80 %", evidence=use)
    need = Need(USED_INODES, used - 7_000, used, CAPACITY)
    return Verdict("InodesEvict", True, f"{used * 100 // CAPACITY} % of the inodes are used ≥ 80 %", None, use, (need,))


def rank(current: Round) -> Ranking:
    pods, excluded = candidates_of(current, "InodesEvict", needs_memory=False)
    return as_candidates(be_order(pods, held), current.reliefs), excluded


RELIEF = Relief(INODES, lambda pod, _: Holding(INODES, held(pod), held(pod)), lambda pod, _: held(pod))
INODES_EVICT = Feature("InodesEvict", RELIEF, judge, rank, "best-effort pod")


def pods() -> list[PodAndMeasure]:
    best_effort = [pod(name, anon=100, priority=5000) for name in ("few", "many", "some")]
    return [*best_effort, pod("api", namespace="web", anon=100, qos="LS", priority=9000)]


def decided(used: int = 700, **more: object) -> Plan:
    recorded = frame(pods(), used=used, gates={"BEMemoryEvict": True, "InodesEvict": True}, **more)
    return decide(view_of_frame(recorded), EvictSettings(), (*FEATURES, INODES_EVICT))


def line(plan: Plan) -> bytes:
    record = OpenPlan(plan, node="n1", dry_run=True, seen_ns=None, decided_ns=1, wall_s=0.0).record()
    return msgspec.json.encode(record)


class TestDecision:
    def test_as_few_pods_are_evicted_as_release_the_need(self) -> None:
        plan = decided()
        memory, inodes = plan.features
        assert (memory.verdict.fires, inodes.verdict.fires) == (False, True)
        assert [victim.candidate.name for victim in plan.victims] == ["many"]
        assert inodes.balance == Balance(INODES, need=2_100, credit=5_000)
        assert not plan.victims[0].for_use  # of memory
        assert plan.sentence == ("evicting spark/many (priority 5000, 5000 inodes): 91 % of the inodes are used ≥ 80 %")

    def test_what_is_released_by_victims_for_memory_counts(self) -> None:
        memory, inodes = decided(used=900).features
        assert memory.victims
        assert inodes.balance.shared == sum(HELD[each.candidate.uid] for each in memory.victims) > 0

    def test_what_leaves_already_counts(self) -> None:
        leaving = PendingRelease(uid="uid-spark-many", since_ns=NOW_NS, credit_bytes=1)
        _, inodes = decided(pending=(leaving,)).features
        assert (inodes.victims, inodes.balance.pending) == ((), 5_000)
        assert inodes.reason == "5000 inodes is already coming back from spark/many"

    def test_the_ladder_says_what_comes_back(self) -> None:
        (text,) = (each.text for each in decided().ladder if each.rung is Rung.EVICT)
        assert "100 MiB and 5000 inodes come back" in text


class TestOutput:
    def test_the_page_prints_it_in_its_unit(self) -> None:
        plan = decided()
        page = plan_page(replace(node_plan_of(frame(pods())), features=plan.features, sentence=plan.sentence), 10)
        assert "  used        9100 inodes  91 %" in page
        assert "  need        2100 inodes" in page
        assert "spark/many" in page

    def test_the_audit_line_reads_back(self) -> None:
        plan = decided()
        raw = line(plan)
        ((record,), problems) = decode_audit(raw, "audit")
        assert problems == ()
        assert record.features[1].balance == plan.features[1].balance
        assert record.features[1].verdict == plan.features[1].verdict
        assert record.features[1].ranking == plan.features[1].candidates
        assert "InodesEvict: 2100 inodes were needed" in explained(record)
        assert "1. spark/many (priority 5000, 5000 inodes)" in explained(record)
        assert read_back(plan) == plan

    def test_its_amounts_have_the_shape_of_those_of_memory(self) -> None:
        memory, inodes = json.loads(line(decided()))["features"]
        assert memory["balance"].keys() == inodes["balance"].keys()
        assert (inodes["balance"]["resource"], inodes["balance"]["need"]) == ("inodes", 2_100)
        assert inodes["verdict"]["needs"][0]["dimension"]["resource"] == "inodes"

    def test_its_need_is_a_metric_of_its_own(self) -> None:
        metrics = DecisionMetrics()
        metrics.needs = {"InodesEvict": Amount(INODES, 2_100)}
        registry = CollectorRegistry()
        registry.register(type("Collector", (), {"collect": lambda _: metrics.families()})())
        text = generate_latest(registry).decode()
        assert 'koordebpf_need_inodes{feature="InodesEvict"} 2100.0' in text
        assert "koordebpf_need_bytes{" not in text

    def test_the_end_of_its_shortage_is_reported(self, monkeypatch) -> None:
        shortages = EndedShortages()
        assert shortages.poll(decided().features, 1) == []
        monkeypatch.setitem(HELD, "uid-spark-many", 0)
        ((_, sentence),) = shortages.poll(decided().features, 2)
        assert sentence == "no longer short of inodes: 41 % of the inodes are used < 80 %"
