"""Which Nodes are computed again: those that changed, and those whose report has become too old."""

from __future__ import annotations

import json
from typing import cast

import pytest
from msgspec.structs import replace

from koordebpf.controller.batch.calculations import Calculations
from koordebpf.controller.batch.facts import MetricRecord, PodRecord, TopologyRecord
from koordebpf.controller.batch.part import BatchResources, Looked, Source
from koordebpf.controller.batch.publish import Publisher
from koordebpf.kube.clients.nodeslos import NodeSLOMeta
from koordebpf.kube.colocation.nodes import ColocationNode
from koordebpf.kube.colocation.writes import WrittenMetric
from koordebpf.policy.batch.facts import CpuMemory, Usage
from koordebpf.report.prom.controller import BatchMetrics
from koordebpf.slo.manager.node_colocation import effective_colocation
from koordebpf.units import NS_PER_S

Known = tuple[tuple[PodRecord, ...], MetricRecord | None, TopologyRecord | None]
ON = effective_colocation(json.dumps({"enable": True, "degradeTimeMinutes": 10}))
START_S = 1_700_000_000


def node(name: str) -> ColocationNode:
    amounts = {"cpu": "10", "memory": "10Gi"}
    return ColocationNode(name, f"uid-{name}", None, None, dict(amounts), dict(amounts))


class Tables:
    """What is known beside the Nodes; `reported` is Node → when its agent reported, in seconds after the start."""

    def __init__(self) -> None:
        self.reported: dict[str, float | None] = {}
        self.news: set[str] = set()

    def changed(self) -> set[str]:
        news, self.news = self.news, set()
        return news

    def of(self, name: str) -> Known:
        if name not in self.reported:
            return (), None, None
        at_s = self.reported[name]
        updated_ns = None if at_s is None else int((START_S + at_s) * NS_PER_S)
        usage = Usage(updated_ns, node=CpuMemory(0, 0))
        return (), MetricRecord(name, WrittenMetric(NodeSLOMeta(name)), usage), None


class Rig:
    def __init__(self) -> None:
        self.tables, self.calculations, self.config = Tables(), Calculations(), ON
        self.nodes = [node(name) for name in "abc"]

    def update(self, at_s: float) -> list[str]:
        now_ns = int((START_S + at_s) * NS_PER_S)
        return self.calculations.update(self.nodes, self.tables, self.config, now_ns)

    def is_reset(self, name: str) -> bool:
        return bool(self.calculations.computed[name].result.reset)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_each_is_computed_once_and_again_when_something_of_it_changed(rig: Rig) -> None:
    assert rig.update(0) == ["a", "b", "c"]
    assert rig.update(1) == []
    rig.tables.news = {"b", "unknown"}
    assert rig.update(2) == ["b"]
    rig.nodes[2] = node("c")
    assert rig.update(3) == ["c"]


def test_another_config_concerns_all_and_a_node_that_is_gone_is_forgotten(rig: Rig) -> None:
    rig.update(0)
    rig.config = effective_colocation(json.dumps({"enable": False}))
    del rig.nodes[0]
    assert rig.update(1) == ["b", "c"]
    assert sorted(rig.calculations.computed) == ["b", "c"]


def test_a_report_that_becomes_too_old_takes_the_resources_away_and_no_other_is_computed(rig: Rig) -> None:
    rig.tables.reported = {"a": 0, "b": 100, "c": None}
    rig.update(1)
    assert [rig.is_reset(name) for name in "abc"] == [False, False, True]
    assert rig.update(600) == []
    assert rig.update(600.5) == ["a"]
    assert (rig.is_reset("a"), rig.update(700)) == (True, [])
    assert rig.update(700.5) == ["b"]
    assert rig.update(9999) == []


def test_a_newer_report_counts_from_its_own_time(rig: Rig) -> None:
    rig.tables.reported = {"a": 0, "b": 300}
    rig.update(300)
    rig.tables.reported["a"], rig.tables.news = 500, {"a"}
    assert rig.update(500) == ["a"]
    assert rig.update(850) == []
    assert rig.update(901) == ["b"]
    assert rig.update(1101) == ["a"]


def test_one_that_reports_again_has_its_resources_again(rig: Rig) -> None:
    rig.tables.reported = {"a": 0}
    rig.update(700)
    assert rig.is_reset("a")
    rig.tables.reported["a"], rig.tables.news = 750, {"a"}
    assert (rig.update(751), rig.is_reset("a")) == (["a"], False)
    assert rig.update(1351) == ["a"]


def test_each_node_counts_once_by_what_became_of_it(rig: Rig) -> None:
    rig.nodes = [node(name) for name in "abcdefg"]
    rig.tables.reported = dict.fromkeys("abcdef", 0.0)  # g has no report
    rig.update(0)
    batch = BatchResources(cast("Source", rig.tables), Publisher(None, adopts=False, now_ns=lambda: 0), lambda _: "")
    batch.calculations.computed = {
        name: replace(each, is_held=name in "ab") for name, each in rig.calculations.computed.items()
    }
    batch.looked = Looked(1)
    metrics = BatchMetrics()
    batch.count(metrics)
    assert metrics.nodes == {"computed": 4, "reset": 1, "pending": 0, "foreign": 0}
