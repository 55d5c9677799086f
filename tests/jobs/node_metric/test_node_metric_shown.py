"""What is said of the node's report when it is not what it should be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from koordebpf.jobs.node_metric.publish import Counts
from koordebpf.jobs.node_metric.render import CollectPolicy
from koordebpf.jobs.node_metric.run import NodeMetricShown, usage_families
from koordebpf.units import NS_PER_S


class Clock:
    second = 1000

    def now_ns(self) -> int:
        return self.second * NS_PER_S

    def wall_s(self) -> float:
        return 0.0

    def suspended_ns(self) -> int:
        return 0


def shown(clock: Clock, *read_problems: str, reporter: Any = None, **job: Any) -> NodeMetricShown:
    usual = {"policy": CollectPolicy(), "problem": None, "unmeasured": None, "newest": None}
    made: Any = SimpleNamespace(**{**usual, **job})
    return NodeMetricShown(made, reporter, 150 * NS_PER_S, lambda: read_problems, clock)


def reporter(**state: Any) -> Any:
    usual = {"problem": None, "held": None, "other_writer": "", "sent_ns": None, "counts": Counts()}
    return SimpleNamespace(**{**usual, **state})


def test_a_report_that_is_too_old_is_a_problem_whatever_the_reason() -> None:
    clock = Clock()
    sends = reporter(sent_ns=1000 * NS_PER_S, held="quiet")
    made = shown(clock, reporter=sends)
    clock.second += 150
    assert made.check().failure(clock.now_ns()) is None
    clock.second += 1
    assert made.check().failure(clock.now_ns()) == "no report for 151 s > 150 s"
    sends.problem = "the NodeMetric of this node is not written: no answer"
    assert made.page().problems == (sends.problem, "no report for 151 s > 150 s")


def test_before_the_first_report_the_start_counts() -> None:
    clock = Clock()
    made = shown(clock, reporter=reporter(held="unread"))
    clock.second += 100
    assert made.page().problems == ()
    clock.second += 100
    assert made.page().problems == ("no report for 200 s > 150 s",)


def test_an_object_that_another_writes_or_that_is_not_there_is_not_too_old() -> None:
    clock = Clock()
    made = shown(clock, reporter=reporter(held="other", other_writer="koordlet"))
    clock.second += 1000
    assert made.page().problems == ("koordlet writes the NodeMetric of this node: it is left alone",)
    assert shown(clock, reporter=reporter(held="absent")).page().problems == ("there is no NodeMetric of this node",)


def test_a_dry_run_says_what_it_cannot_read_or_measure() -> None:
    made = shown(Clock(), "list nodemetrics: 403", problem="NodeMetric: bad", unmeasured="not measured")
    page = made.page()
    assert page.problems == ("list nodemetrics: 403", "NodeMetric: bad", "not measured")
    assert (page.is_sent, page.age_s) == (False, None)


def test_numa_nodes_have_metrics_of_their_own() -> None:
    used = {"resources": {"cpu": "1500m", "memory": "1Ki"}}
    zones = [{"numaNodeID": 1, "nodeUsage": used, "systemUsage": {}}]
    status = {"nodeMetric": {"nodeUsage": used, "systemUsage": used, "numaUsages": zones}}
    samples = {
        (sample.name, sample.labels.get("numa_node_id"), sample.labels["unit"]): sample.value
        for family in usage_families("n1", status)
        for sample in family.samples
    }
    assert samples[("koordlet_node_metric_numa_node_usage", "1", "core")] == 1.5
    assert samples[("koordlet_node_metric_system_usage", None, "byte")] == 1024
    assert not any(name == "koordlet_node_metric_numa_system_usage" for name, _, _ in samples)
