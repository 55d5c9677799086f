"""The alerts of deploy/monitoring, judged by Prometheus' own promtool: what each fires on, and what it nearly does."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from koordebpf.act.writer.change import WriteResult
from koordebpf.state.outcome import Result
from tests.deploy.monitoring import MONITORING, ROOT, RULES, every_rule, metrics, promtool_says, recorded, selectors
from tests.deploy.programs import promtool
from tests.deploy.rendered import DEPLOY

AGENT = 'job="koordebpf",instance="10.0.0.7:9320",node="n1",namespace="koordebpf-system",pod="agent-x"'
CONTROLLER = 'job="koordebpf",instance="10.0.0.9:9321",node="n2",namespace="koordebpf-system",pod="controller-x"'


def agent(name: str, **labels: str) -> str:
    return _series(name, AGENT, labels)


def controller(name: str, **labels: str) -> str:
    return _series(name, CONTROLLER, labels)


# A metric's own label wins over the target's: honor_labels.
def _series(name: str, target: str, labels: Mapping[str, str]) -> str:
    own = {**dict(re.findall(r'(\w+)="([^"]*)"', target)), **labels}
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in own.items()) + "}"


# One sample a minute, as promtool writes them: begin+step×times.
HEALTHY = {
    agent("up"): "1x500",
    controller("up"): "1x500",
    agent("koordebpf_dry_run"): "0x500",
    agent("koordlet_start_time"): "1000x500",
    agent("koordebpf_failed_ticks_total"): "1x500",
    agent("koordebpf_lost_signals"): "0x500",
    agent("koordebpf_records_total"): "0+1000x500",
    agent("koordebpf_lost_records_total"): "0x500",
    agent("koordebpf_audit_dropped_total"): "0x500",
    agent("koordebpf_log_dropped_total"): "0x500",
    controller("koordebpf_log_dropped_total"): "0x500",
    agent("koordebpf_need_bytes", feature="BEMemoryEvict"): "0x500",
    agent("koordebpf_eviction_hook_calls_total", hook="page-me", outcome="done"): "0+1x500",
    agent("koordebpf_eligible_pods"): "3x500",
    agent("koordebpf_ineligible_pods", reason="unlabelled"): "9x500",
    agent("koordebpf_ineligible_pods", reason="protected_namespace"): "4x500",
    agent("koordebpf_released_bytes_total"): "0x500",
    agent("koordebpf_skipped_rounds_total", feature="MemoryEvict", reason="gate_off"): "0+60x500",
    agent("koordebpf_file_writes_total", file="cpu.cfs_quota_us", result="written"): "0+9x500",
    agent("koordebpf_pod_stall_seconds_total", namespace="default", pod="web", scope="limit"): "0+60x500",
    agent("koordebpf_ls_stall_by_be_seconds_total"): "0+0.05x500",
    agent("koordebpf_be_cpu_seconds_total"): "0+60x500",
    agent("koordebpf_be_lost_cpu_seconds_total"): "0+1x500",
    agent("koordebpf_be_memory_bytes"): "3000000000x500",
    agent("koordebpf_batch_allocatable_bytes"): "4000000000x500",
    agent("koordebpf_batch_allocatable_cores"): "4x500",
    agent("koordebpf_needless_evictions_total"): "0x500",
    agent("koordebpf_lead_over_oom_seconds_bucket", le="1.0"): "0x500",
    agent("koordebpf_lead_over_oom_seconds_bucket", le="2.5"): "0+1x500",
    agent("koordebpf_lead_over_oom_seconds_bucket", le="+Inf"): "0+1x500",
    agent("koordebpf_crossing_to_decision_seconds_bucket", le="0.005"): "0+1x500",
    agent("koordebpf_crossing_to_decision_seconds_bucket", le="0.25"): "0+1x500",
    agent("koordebpf_crossing_to_decision_seconds_bucket", le="+Inf"): "0+1x500",
    controller("koordebpf_controller_leader"): "1x500",
    controller("koordebpf_controller_nodeslos", state="settled"): "3x500",
    controller("koordebpf_controller_nodeslos", state="pending"): "0x500",
    controller("koordebpf_controller_overwritten_total"): "0x500",
}
_EVICTED = {"reason": "BEMemoryEvict", "executor": "api"}


class Case(msgspec.Struct, frozen=True):
    """Series in place of healthy ones, and what then fires after so many minutes."""

    series: dict[str, str]
    minutes: int
    fires: dict[str, dict[str, str]] = {}  # alert → some of its labels
    records: dict[str, float] = {}  # recorded series of the node → its value, to a thousandth
    without: str = "nothing"  # series whose name begins so are not there


CASES = {
    "all is well": Case(
        {},
        60,
        records={
            "node:koordebpf_ls_stall_by_be_ratio:rate5m": 0.001,
            "node:koordebpf_ls_stall_by_be_ratio:rate30m": 0.001,
            "node:koordebpf_ls_stall_by_be_ratio:rate1h": 0.001,
            "node:koordebpf_be_lost_cpu:ratio_rate2h": 0.017,
            "node:koordebpf_be_lost_cpu:ratio_rate1d": 0.017,
            "node:koordebpf_lead_over_oom_seconds:p10_1d": 1.15,
            "node:koordebpf_overcommit_yield_memory:ratio": 0.75,
            "node:koordebpf_overcommit_yield_cpu:ratio_rate5m": 0.25,
        },
    ),
    "evictions are counted against the needless ones": Case(
        {
            agent("koordebpf_evictions_total", result="done", **_EVICTED): "0+10x120",
            agent("koordebpf_needless_evictions_total"): "0+1x120",
            agent("koordebpf_released_bytes_total"): "0+900000000x120",
        },
        60,
        records={"node:koordebpf_needless_evictions:ratio_rate1d": 0.1},
    ),
    "half of the evictions were needless": Case(
        {
            agent("koordebpf_evictions_total", result="done", **_EVICTED): "0+2x120",
            agent("koordebpf_needless_evictions_total"): "0+1x120",
            agent("koordebpf_released_bytes_total"): "0+900000000x120",
        },
        60,
        {"KoordebpfNeedlessEvictions": {"node": "n1"}},
    ),
    "one eviction was needless": Case(
        {
            agent("koordebpf_evictions_total", result="done", **_EVICTED): "0x9 1x120",
            agent("koordebpf_needless_evictions_total"): "0x9 1x120",
            agent("koordebpf_released_bytes_total"): "0+900000000x120",
        },
        60,
    ),
    "best-effort pods stall others now": Case(
        {agent("koordebpf_ls_stall_by_be_seconds_total"): "0x300 1.5+1.5x100"},
        361,
        {"KoordebpfStallBudgetBurnsFast": {"node": "n1"}},
    ),
    "best-effort pods stall others for hours": Case(
        {agent("koordebpf_ls_stall_by_be_seconds_total"): "0+1.2x500"},
        361,
        {"KoordebpfStallBudgetBurns": {"node": "n1"}},
        {"node:koordebpf_ls_stall_by_be_ratio:rate6h": 0.02},
    ),
    "best-effort pods have stalled others": Case(
        {agent("koordebpf_ls_stall_by_be_seconds_total"): "0+6x40 240x100"}, 75
    ),
    "evictions throw work away": Case(
        {agent("koordebpf_be_lost_cpu_seconds_total"): "0+12x500"}, 60, {"KoordebpfBestEffortWorkLost": {"node": "n1"}}
    ),
    "an eviction throws the work of half an hour away": Case(
        {agent("koordebpf_be_lost_cpu_seconds_total"): "0x100 600x100"}, 110
    ),
    "the threshold will be crossed": Case(
        {agent("koordebpf_node_forecast_seconds", mark="threshold", bound="point"): "_x9 20x9"},
        12,
        {"KoordebpfEvictsSoon": {"node": "n1"}},
    ),
    "a hook around evictions hangs": Case(
        {agent("koordebpf_eviction_hook_calls_total", hook="page-me", outcome="timed_out"): "0x5 1x100"},
        9,
        {"KoordebpfEvictionHookFails": {"node": "n1", "hook": "page-me"}},
    ),
    "a hook failed an hour ago": Case(
        {agent("koordebpf_eviction_hook_calls_total", hook="page-me", outcome="failed"): "0x5 1x100"}, 80
    ),
    "it will be, but not soon": Case(
        {agent("koordebpf_node_forecast_seconds", mark="threshold", bound="point"): "90x20"}, 12
    ),
    "it will be, and the agent only watches": Case(
        {
            agent("koordebpf_node_forecast_seconds", mark="threshold", bound="point"): "20x20",
            agent("koordebpf_dry_run"): "1x20",
        },
        12,
    ),
    "an agent is down": Case({agent("up"): "0x120"}, 6, {"KoordebpfDown": {"node": "n1"}}),
    "an agent was down": Case({agent("up"): "0x3 1x100"}, 6),
    "no agent is there": Case({}, 11, {"KoordebpfAbsent": {}}, without="koordebpf_dry_run"),
    "no agent was there": Case({agent("koordebpf_dry_run"): "_x8 0x100"}, 11),
    "an agent ends again and again": Case(
        {agent("koordlet_start_time"): "1000x5 1300x5 1600x5 1900x9"}, 20, {"KoordebpfRestarts": {"node": "n1"}}
    ),
    "an agent was updated": Case({agent("koordlet_start_time"): "1000x5 1300x100"}, 20),
    "ticks fail": Case(
        {agent("koordebpf_failed_ticks_total"): "1x5 2+1x100"}, 12, {"KoordebpfTicksFail": {"node": "n1"}}
    ),
    "a tick failed": Case({agent("koordebpf_failed_ticks_total"): "1x5 2x100"}, 12),
    "a guard is closed": Case(
        {agent("koordebpf_guard_closed", reason="pods_stale"): "1x100"},
        6,
        {"KoordebpfGuardClosed": {"node": "n1", "reason": "pods_stale"}},
    ),
    "a guard was closed": Case({agent("koordebpf_guard_closed", reason="pods_stale"): "1x3 stale"}, 6),
    "a signal is lost": Case({agent("koordebpf_lost_signals"): "2x100"}, 6, {"KoordebpfSignalsLost": {"node": "n1"}}),
    "a signal was lost": Case({agent("koordebpf_lost_signals"): "2x2 0x100"}, 6),
    "2 % of the records are lost": Case(
        {agent("koordebpf_lost_records_total"): "0+21x120"}, 12, {"KoordebpfRecordsLost": {"node": "n1"}}
    ),
    "0.9 % of the records are lost": Case({agent("koordebpf_lost_records_total"): "0+9x120"}, 12),
    "nothing is recorded and nothing lost": Case({agent("koordebpf_records_total"): "5x120"}, 12),
    "decisions take more than 100 ms": Case(
        {agent("koordebpf_crossing_to_decision_seconds_bucket", le="0.005"): "0x120"},
        60,
        {"KoordebpfDecidesLate": {"node": "n1"}},
    ),
    "audit lines are lost": Case(
        {agent("koordebpf_audit_dropped_total"): "0x10 5x100"}, 15, {"KoordebpfAuditLost": {"node": "n1"}}
    ),
    "log lines are lost": Case(
        {agent("koordebpf_log_dropped_total"): "0x10 5x100"}, 15, {"KoordebpfLogLost": {"node": "n1"}}
    ),
    "log lines of a controller are lost": Case(
        {controller("koordebpf_log_dropped_total"): "0x10 5x100"}, 15, {"KoordebpfLogLost": {"node": "n2"}}
    ),
    # A guard that closes for a minute, seen by one scrape, alerts for five.
    "evictions do not help": Case(
        {agent("koordebpf_guard_closed", reason="evictions_useless"): "_x9 1 stale"},
        13,
        {"KoordebpfEvictionsUseless": {"node": "n1"}},
    ),
    "evictions did not help, long ago": Case(
        {agent("koordebpf_guard_closed", reason="evictions_useless"): "_x9 1 stale"}, 20
    ),
    "a first eviction frees nothing": Case(
        {agent("koordebpf_evictions_total", result="done", **_EVICTED): "_x10 1x100"},
        17,
        {"KoordebpfNothingFreed": {"node": "n1"}},
    ),
    "the next eviction frees nothing": Case(
        {agent("koordebpf_evictions_total", result="done", **_EVICTED): "4x30 5x100"},
        37,
        {"KoordebpfNothingFreed": {"node": "n1"}},
    ),
    "an eviction frees memory after its grace period": Case(
        {
            agent("koordebpf_evictions_total", result="done", **_EVICTED): "_x10 1x100",
            agent("koordebpf_released_bytes_total"): "0x13 900000000x100",
        },
        17,
    ),
    "an eviction for CPU frees no memory": Case(
        {agent("koordebpf_evictions_total", result="done", reason="BECPUEvict", executor="api"): "_x10 1x100"}, 17
    ),
    "an agent restarted after evictions": Case(
        {agent("koordebpf_evictions_total", result="done", **_EVICTED): "4x30 1x100"}, 37
    ),
    "a budget refuses each eviction": Case(
        {agent("koordebpf_evictions_total", result="refused", **_EVICTED): "0+2x100"},
        15,
        {"KoordebpfEvictionsRefused": {"node": "n1"}},
    ),
    "a budget refuses some evictions": Case(
        {agent("koordebpf_evictions_total", result="refused", **_EVICTED): "0x10 3x100"}, 15
    ),
    "a pod stalls while the agent only watches": Case(
        {
            agent("koordebpf_dry_run"): "1x100",
            agent("koordebpf_pod_stall_seconds_total", namespace="shop", pod="web", scope="global"): "0+12x100",
        },
        12,
        {"KoordebpfPodStallsWhileWatching": {"namespace": "shop", "pod": "web", "node": "n1"}},
    ),
    "a pod stalls while the agent acts": Case(
        {agent("koordebpf_pod_stall_seconds_total", namespace="shop", pod="web", scope="global"): "0+12x100"}, 12
    ),
    "a pod stalls at its own limit": Case(
        {
            agent("koordebpf_dry_run"): "1x100",
            agent("koordebpf_pod_stall_seconds_total", namespace="shop", pod="web", scope="limit"): "0+12x100",
        },
        12,
    ),
    "a watching agent would evict": Case(
        {
            agent("koordebpf_dry_run"): "1x100",
            agent("koordebpf_need_bytes", feature="BEMemoryEvict"): "3000000000x100",
        },
        3,
        {"KoordebpfWouldEvict": {"feature": "BEMemoryEvict"}},
    ),
    "an acting agent evicts": Case({agent("koordebpf_need_bytes", feature="BEMemoryEvict"): "3000000000x100"}, 3),
    "a watching agent would evict for CPU": Case(
        {agent("koordebpf_dry_run"): "1x100", agent("koordebpf_need_cpu_cores", feature="BECPUEvict"): "2.5x100"},
        3,
        {"KoordebpfWouldEvictForCPU": {"feature": "BECPUEvict"}},
    ),
    "an acting agent evicts for CPU": Case({agent("koordebpf_need_cpu_cores", feature="BECPUEvict"): "2.5x100"}, 3),
    "no pod of a node may be evicted": Case(
        {agent("koordebpf_eligible_pods"): "0x100"}, 31, {"KoordebpfNoPodEvictable": {"node": "n1"}}
    ),
    "no pod may be evicted for a while": Case({agent("koordebpf_eligible_pods"): "3x5 0x20 1x100"}, 31),
    "a node has only pods of the system": Case(
        {agent("koordebpf_eligible_pods"): "0x100", agent("koordebpf_ineligible_pods", reason="unlabelled"): "_x100"},
        60,
    ),
    "nothing is counted where plugins may ask for any pod": Case({}, 60, without="koordebpf_eligible"),
    "a NodeSLO is unusable": Case(
        {agent("koordebpf_skipped_rounds_total", feature="BEMemoryEvict", reason="invalid_config"): "0+60x100"},
        8,
        {"KoordebpfNodeSLOInvalid": {"feature": "BEMemoryEvict", "node": "n1"}},
    ),
    "a NodeSLO was unusable": Case(
        {agent("koordebpf_skipped_rounds_total", feature="BEMemoryEvict", reason="invalid_config"): "0+60x2 120x100"}, 9
    ),
    "a node has no NodeSLO": Case(
        {agent("koordebpf_skipped_rounds_total", feature="BEMemoryEvict", reason="no_strategy"): "0+60x100"},
        32,
        {"KoordebpfNodeSLOMissing": {"feature": "BEMemoryEvict", "node": "n1"}},
    ),
    "a new node has no NodeSLO yet": Case(
        {agent("koordebpf_skipped_rounds_total", feature="BEMemoryEvict", reason="no_strategy"): "0+60x5 300x100"}, 32
    ),
    "the kernel refuses a value": Case(
        {agent("koordebpf_file_writes_total", file="cpuset.cpus", result="refused"): "0+6x100"},
        12,
        {"KoordebpfSuppressionRefused": {"file": "cpuset.cpus", "result": "refused", "node": "n1"}},
    ),
    "a child had to lose its CPUs first": Case(
        {agent("koordebpf_file_writes_total", file="cpuset.cpus", result="busy"): "0+6x100"}, 12
    ),
    "an eviction plugin fails": Case(
        {agent("koordebpf_katalyst_plugin_problem", plugin="disk", reason="failed"): "1x100"},
        6,
        {"KoordebpfKatalystPluginFails": {"plugin": "disk", "node": "n1"}},
    ),
    "an eviction plugin has failed": Case(
        {agent("koordebpf_katalyst_plugin_problem", plugin="disk", reason="failed"): "1x3 _x100"}, 12
    ),
    "an eviction plugin lacks what it judges by": Case(
        {agent("koordebpf_katalyst_plugin_problem", plugin="disk", reason="lacks_input"): "1x100"}, 30
    ),
    "conditions are not reported": Case(
        {agent("koordebpf_katalyst_check", check="eviction_manager_report_taint"): "0x100"},
        6,
        {"KoordebpfKatalystPartFails": {"check": "eviction_manager_report_taint", "node": "n1"}},
    ),
    "conditions are reported": Case(
        {agent("koordebpf_katalyst_check", check="eviction_manager_report_taint"): "1x100"}, 12
    ),
    "no controller leads": Case(
        {controller("koordebpf_controller_leader"): "0x100"}, 6, {"KoordebpfControllerLeaderless": {}}
    ),
    "every controller is gone": Case(
        {controller("koordebpf_controller_leader"): "1x10 stale"}, 17, {"KoordebpfControllerLeaderless": {}}
    ),
    "one controller of two is gone": Case(
        {
            controller("koordebpf_controller_leader", pod="c-1"): "1x10 stale",
            controller("koordebpf_controller_leader", pod="c-2"): "0x10 1x100",
        },
        17,
    ),
    "another leads": Case(
        {
            controller("koordebpf_controller_leader"): "0x100",
            controller("koordebpf_controller_leader", instance="10.0.0.10:9321"): "1x100",
        },
        6,
    ),
    "beside Koordinator there is no controller": Case({}, 60, without="koordebpf_controller"),
    "a key of the ConfigMap is unusable": Case(
        {controller("koordebpf_controller_configmap_key_stale", key="resource-threshold-config"): "1x100"},
        6,
        {"KoordebpfConfigMapUnusable": {"key": "resource-threshold-config"}},
    ),
    "NodeSLOs are not written": Case(
        {controller("koordebpf_controller_nodeslos", state="pending"): "2x100"}, 16, {"KoordebpfNodeSLOsPending": {}}
    ),
    "NodeSLOs are on their way": Case({controller("koordebpf_controller_nodeslos", state="pending"): "2x99"}, 12),
    "another client writes NodeSLOs": Case(
        {controller("koordebpf_controller_overwritten_total"): "0+1x100"}, 10, {"KoordebpfNodeSLOsOverwritten": {}}
    ),
    "a NodeSLO was edited by hand": Case({controller("koordebpf_controller_overwritten_total"): "0x5 1x100"}, 30),
}


def rules() -> list[dict[str, Any]]:
    """The alerts."""
    return [rule for rule in every_rule() if "alert" in rule]


def group_of(name: str, case: Case) -> dict[str, Any]:
    """The case as promtool's own file has it."""
    series = HEALTHY | case.series
    firing = 'ALERTS{alertstate="firing"}'
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in rules()}
    # All that fires, by name; then each with the labels that are said of it.
    wanted = [("alertname", [f'{{alertname="{alert}"}}' for alert in case.fires])]
    for alert, labels in case.fires.items():
        of = {**labels, "severity": severities[alert]}
        wanted.append((",".join(of), [_series("", "", of)]))
    alerts = [(f"count by ({by}) ({firing})", [(each, 1) for each in samples]) for by, samples in wanted]
    of_node = _series("", "", {"instance": "10.0.0.7:9320", "node": "n1"})
    values = [
        (f"sum by (instance, node) (round({name} * 1000))", [(of_node, round(value * 1000))])
        for name, value in case.records.items()
    ]
    return {
        "name": name,
        "interval": "1m",
        "input_series": [
            {"series": name, "values": values} for name, values in series.items() if not name.startswith(case.without)
        ],
        "promql_expr_test": [
            {
                # promtool says of a failure which expression it was.
                "expr": f"{expr} # {name}.",
                "eval_time": f"{case.minutes}m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in samples],
            }
            for expr, samples in [*alerts, *values]
        ],
    }


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What promtool says of all cases at once: SUCCESS, or each expression that is not so."""
    path = tmp_path_factory.mktemp("rules") / "test.yaml"
    groups = [group_of(name, case) for name, case in CASES.items()]
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": groups}))
    done = subprocess.run([promtool(), "test", "rules", path], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert ("SUCCESS" in said) is (done.returncode == 0), said
    return said


@pytest.mark.parametrize("name", CASES)
def test_what_fires(name: str, judged: str) -> None:
    wrong = [failure for failure in judged.split("expr: ") if f"# {name}." in failure]
    assert wrong == []


def test_nothing_else_is_wrong(judged: str) -> None:
    assert judged.endswith("SUCCESS\n\n")


class TestRules:
    def test_promtool_takes_them(self) -> None:
        assert f"SUCCESS: {len(every_rule())} rules found" in promtool_says("check", "rules", RULES)

    def test_each_has_a_case_in_which_it_fires(self) -> None:
        assert {alert for case in CASES.values() for alert in case.fires} == {rule["alert"] for rule in rules()}

    def test_what_is_recorded_has_a_case_with_its_value(self) -> None:
        assert recorded()
        assert {name for case in CASES.values() for name in case.records} == recorded()

    def test_each_says_what_it_is_and_what_to_do(self) -> None:
        for rule in rules():
            assert rule["labels"].keys() == {"severity"}, rule["alert"]
            assert rule["labels"]["severity"] in {"info", "warning", "critical"}
            assert rule["annotations"].keys() == {"summary", "description"}
            # A line of a notification.
            assert len(re.sub(r"{{.*?}}", "", rule["annotations"]["summary"])) < 80

    def test_they_are_about_metrics_and_labels_that_there_are(self) -> None:
        known = dict(metrics())
        exprs = [re.sub(r"node:koordebpf_\w+:\w+", "", rule["expr"]) for rule in every_rule()]
        used = {name for expr in exprs for name, _ in selectors(expr)} - {"up"}
        assert used
        assert used <= known.keys()
        for expr in exprs:
            for name, labels in selectors(expr):
                of_target = {"job", "instance", "node", "namespace", "pod", "component"}
                assert labels <= known.get(name, set()) | of_target, (expr, name)
        assert {name for rule in rules() for name in re.findall(r"node:koordebpf_\w+:\w+", rule["expr"])} <= recorded()

    def test_words_that_they_look_for_are_those_of_the_code(self) -> None:
        said = {
            word
            for rule in rules()
            for label, values in re.findall(r'(\w+)=~?"([^"]*)"', rule["expr"])
            if label in {"reason", "result"} and "*" not in values
            for word in values.split("|")
        }
        of_results = {each.value for kind in (Result, WriteResult) for each in kind}
        code = "".join(path.read_text() for path in (ROOT / "koordebpf").rglob("*.py"))
        assert said
        assert {word for word in said - of_results if f'"{word}"' not in code} == set()

    def test_the_operators_object_is_made_of_them(self) -> None:
        # Where it is not: what stands above `spec:` stays, and below it come the groups of rules.yaml, indented.
        kept = yaml.safe_load((DEPLOY / "components/prometheus-operator/prometheusrule.yaml").read_text())
        assert kept["spec"] == yaml.safe_load(RULES.read_text())


def test_prometheus_takes_what_is_to_be_scraped(tmp_path: Path) -> None:
    config = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    (scrape,) = config["scrape_configs"]
    # Debian builds its Prometheus without Kubernetes: the rest is judged.
    assert scrape.pop("kubernetes_sd_configs")
    path = tmp_path / "prometheus.yaml"
    path.write_text(yaml.safe_dump(config))
    (tmp_path / "rules.yaml").write_text(RULES.read_text())
    assert "SUCCESS" in promtool_says("check", "config", path)


def test_both_ways_to_scrape_give_the_same_labels() -> None:
    (by_hand,) = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())["scrape_configs"]
    operator = yaml.safe_load((DEPLOY / "components/prometheus-operator/podmonitor.yaml").read_text())["spec"]
    (endpoint,) = operator["podMetricsEndpoints"]
    assert by_hand["honor_labels"] is endpoint["honorLabels"] is True
    assert by_hand["scrape_interval"] == endpoint["interval"]
    relabelled = {
        rule["target_label"]: rule["source_labels"] for rule in by_hand["relabel_configs"] if "target_label" in rule
    }
    for rule in endpoint["relabelings"]:
        assert relabelled[rule["targetLabel"]] == rule["sourceLabels"]
    # What the operator adds by itself.
    assert relabelled.keys() == {rule["targetLabel"] for rule in endpoint["relabelings"]} | {"namespace", "pod"}
