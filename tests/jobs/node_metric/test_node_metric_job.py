"""The job that renders reports: when, of what, and what it does with a policy that cannot be used."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from koordebpf.collect.cluster_view import ClusterView
from koordebpf.jobs.node_metric.run import NodeMetricJob
from koordebpf.jobs.node_metric.sending import Report
from koordebpf.jobs.node_metric.values import NodeMetricSettings
from koordebpf.kube.cache.objects import ClusterState, Node, NodeStatus, ObjectMeta, Pod, PodSpec, PodStatus
from koordebpf.state.prediction import Amounts, ProdPrediction
from koordebpf.state.series import kinds
from koordebpf.state.series.store import NodeSeries, node_series
from koordebpf.units import GIB, MIB, NS_PER_S

NODE = Node(ObjectMeta("n1"), NodeStatus(capacity={"cpu": "16", "memory": "64Gi"}))


def pod(name: str) -> Pod:
    return Pod(ObjectMeta(name, "be", f"uid-{name}"), PodSpec(), PodStatus(phase="Running", qosClass="Burstable"))


class Clock:
    def __init__(self) -> None:
        self.second = 1000

    def now_ns(self) -> int:
        return self.second * NS_PER_S

    def wall_s(self) -> float:
        return 1_767_323_045.9 + self.second - 1000  # 2026-01-02T03:04:05Z

    def suspended_ns(self) -> int:
        return 0


class Reports:
    """What stands in the place of the thread that sends."""

    def __init__(self) -> None:
        self.all: list[Report] = []

    def report(self, report: Report) -> None:
        self.all.append(report)


class Rig:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *pods: str, **job: Any) -> None:
        monkeypatch.setattr("random.random", lambda: 0.0)
        monkeypatch.setattr("random.uniform", lambda low, high: high)
        # A report is made in one step, however slow the machine is.
        monkeypatch.setattr("koordebpf.jobs.node_metric.run._STEP_NS", 60 * NS_PER_S)
        self.clock, self.reports, self.known = Clock(), Reports(), ClusterView()
        self.series: NodeSeries = node_series()
        self.pods = list(pods)
        self.learn()
        sends: Any = self.reports
        self.job = NodeMetricJob(self.known, NodeMetricSettings(), sends, clock=self.clock, **job)

    def learn(self, **state: Any) -> None:
        pods = tuple(map(pod, self.pods))
        self.known.learn(ClusterState(version=1, synced_at_ns=1, pods=pods, node=NODE, **state))

    def run(self, seconds: int, *, measures: bool = True) -> None:
        for _ in range(seconds):
            self.clock.second += 1
            values: dict[tuple[str, ...], float] = {}
            if measures:
                values = {(kinds.NODE_CPU,): 2.0, (kinds.NODE_MEMORY,): 8 * GIB}
                for name in self.pods:
                    values |= {(kinds.POD_CPU, f"uid-{name}"): 0.5, (kinds.POD_MEMORY, f"uid-{name}"): 100 * MIB}
            self.series.append_round(self.clock.now_ns(), values)
            self.job.collect(self.clock.now_ns(), self.series)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch, "a", "b")


def test_a_report_is_made_each_minute(rig: Rig) -> None:
    rig.run(150)
    assert [report.now_ns // NS_PER_S for report in rig.reports.all] == [1001, 1061, 1121]
    first = rig.reports.all[0]
    assert first.status["updateTime"] == "2026-01-02T03:04:06Z"
    assert [each["name"] for each in first.status["podsMetric"]] == ["a", "b"]
    assert (first.interval_ns, first.period_ns) == (60 * NS_PER_S, 60 * NS_PER_S)
    assert (first.within.millicpu, first.within.memory_bytes) == (16, pytest.approx(64 * GIB / 1000))


def test_the_policy_of_the_object_sets_the_pace(rig: Rig) -> None:
    rig.job.set_spec({"metricCollectPolicy": {"reportIntervalSeconds": 30}})
    rig.run(100)
    assert len(rig.reports.all) == 4
    # One that is longer than consumers wait for does not make reports too old.
    rig.job.set_spec({"metricCollectPolicy": {"reportIntervalSeconds": 3600}})
    rig.run(400)
    ages = [after.now_ns - before.now_ns for before, after in zip(rig.reports.all, rig.reports.all[1:], strict=False)]
    assert max(ages) == 120 * NS_PER_S


def test_a_policy_that_cannot_be_used_leaves_the_last_good_one(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.job.set_spec({"metricCollectPolicy": {"reportIntervalSeconds": 30}})
    for _ in range(3):
        rig.job.set_spec({"metricCollectPolicy": {"reportIntervalSeconds": 0}})
    assert rig.job.policy.interval_ns == 30 * NS_PER_S
    assert rig.job.problem is not None
    assert "spec.metricCollectPolicy.reportIntervalSeconds: 0: must be seconds, more than 0" in rig.job.problem
    assert len(caplog.messages) == 1
    rig.job.set_spec({"metricCollectPolicy": {"reportIntervalSeconds": 45}})
    assert (rig.job.policy.interval_ns, rig.job.problem) == (45 * NS_PER_S, None)


def test_nothing_is_reported_before_pods_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, "a")
    rig.known.is_whole = False
    rig.run(30)
    assert not rig.reports.all
    rig.known.is_whole = True
    rig.run(1)
    assert len(rig.reports.all) == 1


def test_nothing_is_reported_while_the_node_is_not_measured_and_it_is_said_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rig.run(200, measures=False)
    assert not rig.reports.all
    assert caplog.messages == ["NodeMetric: the node's own usage is not measured: nothing is reported"]
    rig.run(61)
    assert rig.reports.all
    assert rig.job.unmeasured is None


def test_many_pods_are_rendered_in_parts_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, *(f"p{number:03}" for number in range(200)))
    monkeypatch.setattr("koordebpf.jobs.node_metric.run._STEP_NS", 0)  # each step is a part
    rig.run(20)
    assert not rig.reports.all
    rig.run(40)
    (report,) = rig.reports.all
    assert len(report.status["podsMetric"]) == 200
    assert report.now_ns == 1001 * NS_PER_S


def test_what_is_predicted_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, "a", predict=lambda now_ns: ProdPrediction(Amounts(1000, GIB), None))
    rig.run(5)
    assert rig.reports.all[0].status["prodReclaimableMetric"] == {
        "resource": {"resources": {"cpu": "1", "memory": "1Gi"}}
    }


def test_in_a_dry_run_it_is_rendered_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, "a")
    rig.job = NodeMetricJob(rig.known, NodeMetricSettings(), None, clock=rig.clock)
    rig.run(5)
    assert rig.job.newest is not None
    assert rig.job.newest["podsMetric"][0]["name"] == "a"


@pytest.mark.parametrize("capacity", [None, {}, {"cpu": "16"}])
def test_a_node_whose_capacity_is_not_known_is_reported(rig: Rig, capacity: Any) -> None:
    rig.known.node = Node(ObjectMeta("n1"), NodeStatus(capacity=capacity))
    rig.run(5)
    assert rig.reports.all[0].within.memory_bytes == 0
