"""What a scrape shows of Katalyst's eviction manager: in the names of this agent, and in Katalyst's own."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from koordebpf.policy.strategy import SoftNotice
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.slo.katalyst_access import Validation
from koordebpf.state.cnr import Cnr, CnrZone
from koordebpf.state.outcome import Result
from koordebpf.state.pods.requests import RECLAIMED_CPU
from koordebpf.store.sink import NoticeEnded
from koordebpf.strategies.katalyst.inner import InnerSettings
from koordebpf.strategies.katalyst.metrics import MAX_DETAILS, MAX_PLUGINS, KatalystNames
from koordebpf.strategies.katalyst.plugins.cnr import NetworkSettings
from koordebpf.strategies.katalyst.plugins.memory import SystemMemorySettings
from koordebpf.strategies.katalyst.settings import KatalystMetricsSettings, KatalystSettings
from koordebpf.strategies.katalyst.values import (
    NOTIFY,
    REPORT_TAINT,
    Condition,
    KatalystFacts,
    NumaMemory,
    PluginAnswer,
)
from koordebpf.units import GIB, PAGE_BYTES
from tests.strategies.katalyst.test_katalyst_frames import QUIET, PodAndMeasure, forced, hard, kpod, soft, system
from tests.support.katalyst_scrape import ScrapedNode

METRICS_PAGE = Path(__file__).parents[2] / "deploy" / "metrics.md"
# What the rest of the agent shows too.
OTHERS = {family.name for family in AgentMetrics().collect()} | {"koordebpf_build_info"}
MEMORY = "system-memory-pressure-eviction-plugin"
NUMA = "numa-memory-pressure-eviction-plugin"
RECLAIMED = "reclaimed-resource-pressure-eviction-plugin"
INNER = KatalystSettings(
    inner=InnerSettings(systemMemory=SystemMemorySettings(free_minimum_bytes=GIB), network=NetworkSettings(is_on=True))
)


def full_node() -> ScrapedNode:
    """A scrape in which nothing is empty."""
    settings = replace(INNER, dry_run=("counts",), metrics=KatalystMetricsSettings(pod_labels=("app",)))
    node = ScrapedNode([labelled(kpod("batch"), app="spark"), kpod("other"), kpod("listens", notice=True)], settings)
    node.facts = KatalystFacts(
        {REPORT_TAINT: None},
        {Validation("p", is_strict=True, reason="no_permission", user="batch"): 2},
    )
    for problem in (None, "the disk is full"):
        notice = SoftNotice("kat", "listens", "p", "because", "listens")
        node.sink.publish(NoticeEnded(notice, problem, node.now_ns, 0.0))
    node.answer(
        forced("counts", "other"),
        replace(forced("fails", "elsewhere"), problem="GetEvictPods: no answer in time"),
        hard("p", "other", condition=Condition("Disk", "cnr", ("reclaimed_cores/NoSchedule",))),
    )
    numa = NumaMemory(0, 16 * GIB, GIB // PAGE_BYTES, 1, 2, 0, 0)
    node.measured = replace(system(free=GIB // 2), numa=(numa,), cnr=Cnr())
    node.round(5)
    node.outcome(node.evicted[-1], Result.DONE)
    node.measured = replace(
        node.measured, cnr=Cnr({RECLAIMED_CPU: 4000}, nics=(CnrZone("eth1"),)), remote_plugins=("fails",)
    )
    node.round(5)
    return node


def labelled(made: PodAndMeasure, **labels: str) -> PodAndMeasure:
    metadata = replace(made.pod.metadata, labels={**(made.pod.metadata.labels or {}), **labels})
    return replace(made, pod=replace(made.pod, metadata=metadata))


def katalyst_families(node: ScrapedNode) -> list[Metric]:
    return [each for each in node.scrape() if each.name not in OTHERS]


def row(family: Metric) -> str:
    name = family.name + ("_total" if family.type == "counter" else "")
    found = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
    return f"| `{name}` | {family.type} | {' '.join(f'`{each}`' for each in found)} | {family.documentation} |"


def test_the_table_for_operators_is_what_a_scrape_says_of_itself() -> None:
    written = METRICS_PAGE.read_text().partition("## Katalyst's eviction manager\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `.*$", written, re.MULTILINE) == [row(family) for family in katalyst_families(full_node())]


def test_the_same_round_is_counted_in_both_names() -> None:
    node = full_node()
    assert node.value("koordebpf_katalyst_rounds_total", plugins="inside") == 3
    assert node.value("koordebpf_katalyst_rounds_total", plugins="outside") == 1
    assert node.value("koordebpf_katalyst_inside_round_seconds_sum") == 0.006
    # in the first round nothing was measured
    assert node.value("koordebpf_katalyst_plugin_calls_total", plugin=MEMORY, result="answered") == 2
    assert node.value("koordebpf_katalyst_thresholds_met_total", plugin=MEMORY, met="hard") == 2
    assert node.value("koordebpf_katalyst_refused_pods_total", plugin="fails", reason="no_candidate") == 1
    assert node.value("koordebpf_katalyst_requested_pods_total", plugin="counts", mode="dry_run") == 1
    assert node.value("koordebpf_katalyst_released_pods_total", plugin=MEMORY, mode="force") == 1
    assert node.value("koordebpf_katalyst_condition", condition="Disk", kind="cnr") == 1
    assert node.value("koordebpf_katalyst_check", check=REPORT_TAINT) == 1
    assert node.value("koordebpf_katalyst_check", check=NOTIFY) == 0
    assert node.value("koordebpf_katalyst_validations_total", outcome="rejected", reason="no_permission") == 2
    assert node.value("eviction_plugin_called", name=MEMORY) == 3
    assert node.value("pod_resource", type="allocatable", resource=RECLAIMED_CPU) == 4000
    assert node.value("running_pod_cnt") == node.value("candidate_pod_cnt") == 1
    assert node.value("threshold_met_count", detection_level="system", action="reclaimed_eviction") == 2
    assert node.value("number_of_target_pods_raw") == 0  # the second time it cools down
    assert node.value("numa_metric_raw", numa_id="0", metric_name="numa_free_below_watermark_times") > 0
    assert node.value("system_metric_raw", metric_name="mem.free.system") == GIB // 2
    assert node.value("get_resource_empty", pluginName=RECLAIMED) == 1
    assert node.value("kill_pod", state="succeeded", pod_ns="kat", pod_name=node.evicted[-1], plugin_name=MEMORY) == 1
    assert node.value("notify_pod", state="succeeded", pod_name="listens", plugin_name="p") == 1
    assert node.value("koordebpf_katalyst_notices_total", result="failed") == 1
    assert node.value("network_eviction_unhealthy_nic", nic="eth1") == 1
    assert node.value("cnr_taint", key="node.katalyst.kubewharf.io/Disk", effect="NoSchedule") == 1
    assert node.value("request_condition_cnt", name="p", effects="reclaimed_cores/NoSchedule", dryrun="false") == 1
    validated = node.rows("eviction_plugin_validate")
    assert validated == [
        ({"name": "p", "strict": "true", "valid": "false", "reason": "no_permission", "user": "batch"}, 2)
    ]


def test_victims_are_counted_as_katalyst_counts_them_above_the_burst_too() -> None:
    node = ScrapedNode([kpod(f"batch-{number}", priority=None) for number in range(5)], replace(QUIET, burst=1))
    node.answer(forced("p", *node.pods))
    assert node.value("victims_cnt", type="total") == 5
    assert node.value("koordebpf_katalyst_queued_pods", mode="force") == 1
    assert node.value("koordebpf_katalyst_released_pods_total", plugin="p", mode="force") == 1
    labels = {"victim_ns": "kat", "qos": "reclaimed_cores", "priority": "empty", "name": "p"}
    assert node.value("victims_cnt", type="plugin", victim_name="batch-3", **labels) == 1


def test_of_soft_requests_the_one_that_may_go_is_a_victim() -> None:
    node = ScrapedNode([kpod("a"), kpod("b"), kpod("listens", notice=True)])
    node.answer(soft("p", "a", "b", "listens"))
    assert node.value("victims_cnt", type="total") == 1
    assert node.value("koordebpf_katalyst_requested_pods_total", plugin="p", mode="soft") == 3


def test_a_level_that_cannot_be_read_is_unknown() -> None:
    node = ScrapedNode([kpod("odd", "best_cores")])
    node.answer(forced("p", "odd"))
    assert node.value("victims_cnt", type="plugin", victim_name="odd", qos="unknown") == 1


def test_labels_of_victims_are_shown_where_they_are_asked_for() -> None:
    settings = replace(QUIET, metrics=KatalystMetricsSettings(pod_labels=("app.kubernetes.io/name", "no-such")))
    hostile = 'x"} 1\nforged{a="b'
    made = kpod("batch")
    metadata = replace(made.pod.metadata, labels={"app.kubernetes.io/name": hostile, "other": "y"})
    node = ScrapedNode([replace(made, pod=replace(made.pod, metadata=metadata))], settings)
    node.answer(forced("p", "batch"))
    assert node.value("victims_cnt", type="plugin", pod_app_kubernetes_io_name=hostile) == 1
    assert not node.rows("forged")
    (labels,) = [labels for labels, _ in node.rows("victims_cnt") if labels["type"] == "plugin"]
    assert [each for each in labels if each.startswith("pod_")] == ["pod_app_kubernetes_io_name"]


def test_names_that_plugins_choose_are_bounded_and_no_count_is_lost() -> None:
    node = ScrapedNode([kpod("batch")])
    node.answer(*(forced(f"plugin-{number}", "elsewhere") for number in range(500)))
    rows = node.rows("koordebpf_katalyst_refused_pods_total")
    assert len(rows) == MAX_PLUGINS + 1
    assert sum(value for _, value in rows) == 500
    assert len(node.rows("eviction_plugin_called")) <= 101


def test_names_of_pods_are_bounded_and_end() -> None:
    names = KatalystNames(())
    for number in range(3 * MAX_DETAILS):
        names.detail("kill_pod", (("pod_name", f"p{number}"),), number)
    families = {family.name: family.samples for family in names.families(3 * MAX_DETAILS)}
    assert len(families["kill_pod"]) == MAX_DETAILS == 500  # as of koordlet's names
    assert families["kill_pod"][-1].labels == {"pod_name": f"p{3 * MAX_DETAILS - 1}"}
    later = {family.name: family.samples for family in names.families(400_000_000_000)}
    assert later["kill_pod"] == []


def test_katalysts_names_can_be_left_out() -> None:
    node = ScrapedNode([kpod("batch")], replace(QUIET, metrics=KatalystMetricsSettings(katalyst_names=False)))
    node.answer(forced("p", "batch"))
    names = [family.name for family in katalyst_families(node)]
    assert names
    assert [name for name in names if not name.startswith("koordebpf_katalyst_")] == []


def test_without_the_feature_gate_there_are_none() -> None:
    assert [name for name in OTHERS if "katalyst" in name or "victims" in name] == []


def test_names_and_sentences_follow_the_rule() -> None:
    for family in katalyst_families(full_node()):
        assert re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", family.name), family.name
        assert family.documentation.endswith("."), family.name


def test_openmetrics_parses() -> None:
    node = full_node()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(node.metrics)
    names = {family.name for family in parse_openmetrics(generate_latest(registry).decode())}
    assert {"victims_cnt", "kill_pod", "koordebpf_katalyst_rounds"} <= names


def test_a_plugin_that_fails_or_lacks_input_is_named() -> None:
    node = ScrapedNode([kpod("batch")], INNER)
    node.round()
    node.answer(PluginAnswer("remote", problem="no answer in time"))
    rows = node.rows("koordebpf_katalyst_plugin_problem")
    assert ({"plugin": "remote", "reason": "failed"}, 1) in rows
    assert ({"plugin": RECLAIMED, "reason": "lacks_input"}, 1) in rows
    node.answer(PluginAnswer("remote"))
    assert "remote" not in {labels["plugin"] for labels, _ in node.rows("koordebpf_katalyst_plugin_problem")}


@pytest.mark.parametrize("labels", [[1], [""], ["x"] * 17])
def test_labels_that_no_metric_has_are_refused(labels: list[object]) -> None:
    with pytest.raises(msgspec.ValidationError, match="pod_labels"):
        msgspec.convert({"pod_labels": labels}, KatalystMetricsSettings)
