"""The whole of the report as an agent opens it: gate, policy, sending, and what it shows."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.registry import CollectorRegistry

from koordebpf.agent.jobs import open_jobs
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import FEATURE_GATES
from koordebpf.jobs.node_metric import sending as sending_module
from koordebpf.jobs.node_metric.run import open_job
from koordebpf.kube.cache.objects import ClusterState, Node, NodeStatus, ObjectMeta, Pod, PodSpec, PodStatus
from koordebpf.printable import json_bytes
from koordebpf.report.http.routes import Health
from koordebpf.report.job_pages import JobPages, WithJobs
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.state.prediction import Amounts, LatestPrediction, ProdPrediction
from koordebpf.state.series import kinds
from koordebpf.state.series.store import node_series
from koordebpf.units import GIB, MIB, NS_PER_S
from tests.contract.apiserver import Server, until
from tests.contract.node_metric_server import NodeMetrics
from tests.support.contexts import context_of


class Node_:
    """What a job is opened with, for a node with one pod that is measured each second."""

    def __init__(self, kubeconfig: Path | None, *, acts: bool = True, **config: Any) -> None:
        known = ClusterView()
        pod = Pod(ObjectMeta("a", "be", "uid-a"), PodSpec(), PodStatus(phase="Running", qosClass="BestEffort"))
        node = Node(ObjectMeta("n1"), NodeStatus(capacity={"cpu": "8", "memory": "32Gi"}))
        known.learn(ClusterState(version=1, synced_at_ns=1, pods=(pod,), node=node))
        self.beside, self.series, self.prediction = JobPages(), node_series(), LatestPrediction()
        measuring: Any = SimpleNamespace(
            known=known, series=self.series, prediction=self.prediction, beside=self.beside
        )
        gates = {"feature_gates": {**FEATURE_GATES, "NodeMetricReport": True}}
        usual: dict[str, Any] = {"source": "api", "kubeconfig": kubeconfig, "node_name": "n1", "enforce": acts}
        settings = AgentConfig(**{**usual, **gates, **config})
        self.context = context_of(settings, measuring, folder=Path("/nowhere") if acts else None)
        self.second = time.monotonic_ns() // NS_PER_S

    def run(self, job: Any, cores: float = 1.0, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.second += 1
            now_ns = self.second * NS_PER_S
            values: dict[tuple[str, ...], float] = {(kinds.NODE_CPU,): cores, (kinds.NODE_MEMORY,): 4 * GIB}
            values |= {(kinds.POD_CPU, "uid-a"): cores / 2, (kinds.POD_MEMORY, "uid-a"): 100 * MIB}
            self.series.append_round(now_ns, values)
            job.collect(now_ns, self.series)


@pytest.fixture(autouse=True)
def without_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.0)
    monkeypatch.setattr(sending_module, "_BURST_NS", 0)


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


def page(node: Node_) -> Any:
    return json.loads(json_bytes(node.beside.pages["/node-metric"]("")))


def test_with_its_gate_off_there_is_none(stack: contextlib.ExitStack) -> None:
    node = Node_(None, feature_gates=FEATURE_GATES)
    assert open_jobs(replace(node.context, stack=stack)) == []
    assert not node.beside.pages


def test_reports_are_sent_with_the_policy_of_the_object(
    kubeconfig: Path, server: Server, stack: contextlib.ExitStack
) -> None:
    metrics = NodeMetrics(server, {"metricCollectPolicy": {"nodeAggregatePolicy": {"durations": ["1m"]}}})
    node = Node_(kubeconfig)
    node.prediction.put(ProdPrediction(Amounts(500, GIB), Amounts(700, 2 * GIB)), {}, node.second * NS_PER_S)
    job = open_job(replace(node.context, stack=stack))
    assert job is not None
    until(lambda: len(job.policy.durations_ns) == 1, "the policy")
    node.run(job, seconds=5)
    until(lambda: metrics.status, "the report")
    status = metrics.status
    assert status["nodeMetric"]["nodeUsage"] == {"resources": {"cpu": "1", "memory": "4Gi"}}
    assert [each["duration"] for each in status["nodeMetric"]["aggregatedNodeUsages"]] == ["1m0s"]
    assert status["podsMetric"] == [
        {
            "name": "a",
            "namespace": "be",
            "podUsage": {"resources": {"cpu": "500m", "memory": "100Mi"}},
            "priority": "koord-batch",
            "qos": "BE",
        }
    ]
    assert status["prodReclaimableMetric"] == {"resource": {"resources": {"cpu": "500m", "memory": "1Gi"}}}
    assert status["prodPeakMetric"] == {"resource": {"resources": {"cpu": "700m", "memory": "2Gi"}}}


def test_a_policy_that_cannot_be_used_is_shown_and_the_last_good_one_stays(
    kubeconfig: Path, server: Server, stack: contextlib.ExitStack
) -> None:
    metrics = NodeMetrics(server, {"metricCollectPolicy": {"reportIntervalSeconds": 45}})
    node = Node_(kubeconfig)
    job = open_job(replace(node.context, stack=stack))
    assert job is not None
    until(lambda: job.policy.interval_ns == 45 * NS_PER_S, "the policy")
    metrics.write("someone", "", spec={"metricCollectPolicy": {"reportIntervalSeconds": 0}})
    until(lambda: page(node)["problems"], "the problem")
    assert "reportIntervalSeconds: 0: must be seconds" in page(node)["problems"][0]
    assert page(node)["policy"]["interval_ns"] == 45 * NS_PER_S


def test_a_dry_run_reads_the_policy_shows_the_report_and_sends_nothing(
    kubeconfig: Path, server: Server, stack: contextlib.ExitStack
) -> None:
    metrics = NodeMetrics(server, {"metricCollectPolicy": {"reportIntervalSeconds": 30}})
    node = Node_(kubeconfig, acts=False)
    job = open_job(replace(node.context, stack=stack))
    assert job is not None
    until(lambda: job.policy.interval_ns == 30 * NS_PER_S, "the policy")
    node.run(job, seconds=40)
    shown = page(node)
    assert (shown["is_sent"], shown["held"], shown["age_s"]) == (False, None, None)
    assert shown["status"]["podsMetric"][0]["name"] == "a"
    assert not metrics.patches


def test_with_pods_from_files_it_is_rendered_and_no_server_is_asked(stack: contextlib.ExitStack) -> None:
    node = Node_(None, source="file", node_name=None)
    job = open_job(replace(node.context, stack=stack))
    assert job is not None
    node.run(job, seconds=5)
    assert page(node)["status"]["nodeMetric"]["nodeUsage"] == {"resources": {"cpu": "1", "memory": "4Gi"}}


def test_what_it_does_is_shown_to_probes_and_prometheus(
    kubeconfig: Path, server: Server, stack: contextlib.ExitStack
) -> None:
    metrics = NodeMetrics(server)
    node = Node_(kubeconfig)
    job = open_job(replace(node.context, stack=stack))
    assert job is not None
    node.run(job, seconds=5)
    until(lambda: metrics.status and page(node)["age_s"] is not None, "the report")
    health = Health()
    health.beside = node.beside
    (check,) = health.beside.all_checks()
    assert (check.name, check.failure(time.monotonic_ns())) == ("NodeMetric", None)
    registry = CollectorRegistry()
    registry.register(WithJobs(AgentMetrics(), node.beside))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    until(lambda: value("koordebpf_node_metric_written_total") == 1, "its count, after the answer")
    assert value("koordebpf_node_metric_bytes_total") == len(metrics.patches[0].body)
    assert value("koordebpf_node_metric_failures_total") == 0
    assert value("koordebpf_node_metric_held", reason="other") == 0
    age_s = value("koordebpf_node_metric_age_seconds")
    assert age_s is not None
    assert age_s < 60
    assert value("koordlet_node_metric_node_usage", node="n1", resource="cpu", unit="core") == 1
    assert value("koordlet_node_metric_node_usage", node="n1", resource="memory", unit="byte") == 4 * GIB
    assert value("koordlet_node_metric_system_usage", node="n1", resource="cpu", unit="core") is None
    metrics.write("koordlet", "status", status={"updateTime": "2026-01-02T00:00:00Z"})
    until(lambda: node.run(job, 2.0) or page(node)["held"] == "other", "that koordlet writes")
    assert value("koordebpf_node_metric_held", reason="other") == 1
    assert page(node)["other_writer"] == "koordlet"
    (check,) = health.beside.all_checks()
    assert check.failure(time.monotonic_ns()) == "koordlet writes the NodeMetric of this node: it is left alone"
