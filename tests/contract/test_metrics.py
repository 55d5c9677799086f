"""What a Prometheus server and the kubelet's probes see, over the real socket."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from koordebpf.act.eviction_hook_settings import WebhookHook
from koordebpf.act.eviction_hooks import EvictionHooks, Ran
from koordebpf.act.writer.change import WriteResult
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.what_if.week import Lead, ShadowCounts, ShadowDay
from koordebpf.errors import ConfigError
from koordebpf.events.run_queue import SLOTS, RunQueueHistogram
from koordebpf.kernel.io.table import report_odd
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kernel.signals import SignalQuality
from koordebpf.kube.cache.objects import ContainerStatus, ObjectMeta, Pod, PodStatus
from koordebpf.policy.evict.eligibility import Eligibility
from koordebpf.policy.foresight import EvictionWarningSettings
from koordebpf.policy.strategy import Empty
from koordebpf.report.eviction_hooks import EvictionHookSink
from koordebpf.report.foresight import ForesightSink
from koordebpf.report.http.routes import Health, ReportServer
from koordebpf.report.prom.koordlet import KoordletMetrics
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.report.prom.page import OwnUsage
from koordebpf.report.prom.pods import POD_SERIES, PodSeries
from koordebpf.report.prom.series import SeriesMetrics
from koordebpf.report.prom.shadow import ShadowMetrics
from koordebpf.slo.strategies.host_applications import HostApplication
from koordebpf.state.amount import CPU, MEMORY, Amount
from koordebpf.state.build import view_of_frame
from koordebpf.state.cpu.measured import CpuMeasured, CpuTopology, CpuView
from koordebpf.state.measured import Measured, NodeForecast, NodeMeasure, OutsideMeasure, Party, PsiLine, TimeTo
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.series.store import SeriesStore
from koordebpf.state.stalls.ledger import Charge
from koordebpf.store.line_sink import LineSink
from koordebpf.store.open_plans import OpenPlans
from koordebpf.store.recorder.recorder import RecorderCounts
from koordebpf.store.recorder.values import Pace
from koordebpf.strategies.cpu_suppress import run as suppress_run
from koordebpf.strategies.cpu_suppress.run import SuppressionMetrics
from koordebpf.strategies.memory_qos.decide import MemoryQosDecision
from koordebpf.strategies.memory_qos.run import MemoryQosRunner
from koordebpf.strategies.resctrl.monitor import ResctrlMonitor
from koordebpf.strategies.resctrl.values import MonitoredDomain
from koordebpf.units import NS_PER_S
from tests.support.contexts import context_of
from tests.support.values.builders import frame, pod

# Name → labels. A dashboard or an alert somewhere rests on each of these: a change here is a change for its readers.
CONTRACT = {
    "koordebpf_build_info": {"version"},
    "koordebpf_need_bytes": {"feature"},
    "koordebpf_node_threshold_bytes": {"feature", "mark"},
    "koordebpf_need_cpu_cores": {"feature"},
    "koordebpf_pending_release_bytes": set(),
    "koordebpf_barred_pods": {"reason"},
    "koordebpf_exempt_bytes": {"reason"},
    "koordebpf_eligible_pods": set(),
    "koordebpf_ineligible_pods": {"reason"},
    "koordebpf_released_bytes_total": set(),
    "koordebpf_evictions_total": {"reason", "executor", "result"},
    "koordebpf_skipped_rounds_total": {"feature", "reason"},
    "koordebpf_guard_closed": {"reason"},
    "koordebpf_dry_run": set(),
    "koordebpf_crossing_to_decision_seconds_bucket": {"le"},
    "koordebpf_crossing_to_decision_seconds_count": set(),
    "koordebpf_crossing_to_decision_seconds_sum": set(),
    "koordebpf_decision_to_freed_seconds_bucket": {"le"},
    "koordebpf_decision_to_freed_seconds_count": set(),
    "koordebpf_decision_to_freed_seconds_sum": set(),
    "koordebpf_pod_stall_seconds_total": {"namespace", "pod", "scope"},
    "koordebpf_stall_charged_seconds_total": {"victim", "cause"},
    "koordebpf_ls_stall_by_be_seconds_total": set(),
    "koordebpf_be_cpu_seconds_total": set(),
    "koordebpf_be_lost_cpu_seconds_total": set(),
    "koordebpf_be_memory_bytes": set(),
    "koordebpf_batch_allocatable_bytes": set(),
    "koordebpf_batch_allocatable_cores": set(),
    "koordebpf_needless_evictions_total": set(),
    "koordebpf_lead_over_oom_seconds_bucket": {"le"},
    "koordebpf_lead_over_oom_seconds_count": set(),
    "koordebpf_lead_over_oom_seconds_sum": set(),
    "koordebpf_oom_kills_total": {"scope"},
    "koordebpf_node_forecast_seconds": {"mark", "bound"},
    "koordebpf_pod_forecast_seconds": {"namespace", "pod", "bound"},
    "koordebpf_pods": {"state"},
    "koordebpf_pods_age_seconds": set(),
    "koordebpf_signals_info": {"backend", "stalls", "births", "scan"},
    "koordebpf_lost_signals": set(),
    "koordebpf_other_kubepods": set(),
    "koordebpf_records_total": set(),
    "koordebpf_lost_records_total": set(),
    "koordebpf_missed_runs_total": set(),
    "koordebpf_lost_ends_total": set(),
    "koordebpf_odd_kernel_rows_total": {"file"},
    "koordebpf_audit_dropped_total": set(),
    "koordebpf_audit_waiting": set(),
    "koordebpf_log_dropped_total": set(),
    "koordebpf_log_waiting": set(),
    "koordebpf_events_dropped_total": set(),
    "koordebpf_sink_errors_total": {"sink"},
    "koordebpf_recorder_rounds_total": set(),
    "koordebpf_recorder_lost_rounds_total": set(),
    "koordebpf_recorder_lost_events_total": set(),
    "koordebpf_recorder_bytes": set(),
    "koordebpf_recorder_failing": set(),
    "koordebpf_recorder_reach_seconds": {"pace"},
    "koordebpf_recorder_cpu_seconds_total": set(),
    "koordebpf_eviction_hook_calls_total": {"hook", "outcome"},
    "koordebpf_eviction_hook_seconds_total": {"hook"},
    "koordebpf_eviction_warnings_total": {"event"},
    "koordebpf_eviction_warning_lead_seconds_bucket": {"le"},
    "koordebpf_eviction_warning_lead_seconds_count": set(),
    "koordebpf_eviction_warning_lead_seconds_sum": set(),
    "koordebpf_shadow_evictions_total": {"configuration"},
    "koordebpf_shadow_freed_bytes_total": {"configuration"},
    "koordebpf_shadow_above_seconds_total": {"configuration"},
    "koordebpf_shadow_decisions_total": {"configuration", "kind"},
    "koordebpf_shadow_lead_seconds": {"configuration", "over"},
    "koordebpf_shadow_node_events_total": {"event"},
    "koordebpf_shadow_cpu_seconds_total": set(),
    "koordebpf_be_cpu_cores": set(),
    "koordebpf_file_writes_total": {"file", "result"},
    "koordebpf_suppression_wakes_total": {"source", "outcome"},
    "koordebpf_sched_tracing_cost_ratio": set(),
    "koordebpf_sched_tracing_sampled_ratio": set(),
    "koordebpf_run_queue_wait_seconds_bucket": {"le"},
    "koordebpf_run_queue_wait_seconds_count": set(),
    "koordebpf_run_queue_wait_seconds_sum": set(),
    "koordebpf_node_used_bytes": set(),
    "koordebpf_node_memory_bytes": {"held_by"},
    "koordebpf_node_capacity_bytes": set(),
    "koordebpf_node_psi_avg10_ratio": {"degree"},
    "koordebpf_node_psi_stall_seconds_total": {"degree"},
    "koordebpf_resctrl_llc_occupancy_bytes": {"cache_id", "qos"},
    "koordebpf_resctrl_memory_bytes_total": {"cache_id", "qos", "type"},
    "koordebpf_series": set(),
    "koordebpf_series_bytes": set(),
    "koordebpf_series_dropped_samples_total": set(),
    "koordebpf_series_dropped_total": set(),
    "koordebpf_series_refused_samples_total": set(),
    "koordebpf_protected_bytes": {"file", "kube_qos"},
    "koordebpf_ticks_total": set(),
    "koordebpf_failed_ticks_total": set(),
    "koordebpf_thread_errors_total": {"thread"},
    "process_cpu_seconds_total": set(),
    "process_resident_memory_bytes": set(),
    "process_virtual_memory_bytes": set(),
    "process_start_time_seconds": set(),
    "process_open_fds": set(),
    "process_threads": set(),
}
POD = ("pod_uid", "pod_name", "pod_namespace")
CONTAINER = ("container_id", "container_name")
PSI = ("psi_resource_type", "psi_precision", "psi_degree", "cpu_full_supported")
# Koordinator's own, as koordlet spells them.
KOORDLET = {
    "koordlet_pod_eviction": {"node", "reason"},
    "koordlet_pod_eviction_detail": {"node", "pod_namespace", "pod_name", "reason"},
    "koordlet_node_used_memory_bytes": {"node"},
    "koordlet_start_time": {"node"},
    "koordlet_node_used_cpu_cores": {"node"},
    "koordlet_be_suppress_be_used_cpu_cores": {"node"},
    "koordlet_host_application_resource_usage": {"node", "host_application_name", "resource", "priority_class", "qos"},
    "koordlet_container_cpi": {"node", *POD, *CONTAINER, "cpi_field"},
    "koordlet_container_psi": {"node", *POD, *CONTAINER, *PSI},
    "koordlet_pod_psi": {"node", *POD, *PSI},
    "koordlet_be_suppress_cpu_cores": {"node", "type"},
    "koordlet_resctrl_llc_occupancy": {"node", "cache_id", "qos"},
    "koordlet_resctrl_memory_bandwidth": {"node", "cache_id", "qos", "mb_type"},
}


def series_metrics() -> SeriesMetrics:
    store = SeriesStore()
    store.append_round(
        time.monotonic_ns(),
        {
            ("node_cpu_usage",): 1.5,
            ("node_be", "cpu", "usage"): 0.5,
            ("pod_psi", "web", "mem", "10", "some"): 12.5,
            ("pod_psi", "web", "mem", "10", "derived-some"): 1,
            ("pod_psi", "gone", "mem", "10", "some"): 1,
            ("container_psi", "web", "c1", "cpu", "10", "full"): 25,
            ("container_psi", "web", "c2", "cpu", "10", "full"): 1,
            ("container_cpi", "web", "c1", "cycle"): 300,
            ("container_cpi", "web", "c1", "instruction"): 200,
            ("host_application_cpu_usage", "nginx"): 0.25,
            ("host_application_memory_usage", "nginx"): 4096,
        },
    )
    store.append(("pod_psi", "old", "mem", "10", "some"), time.monotonic_ns(), 1)
    web = Pod(
        metadata=ObjectMeta(uid="web", name="web-0", namespace="shop"),
        status=PodStatus(containerStatuses=[ContainerStatus("nginx", "containerd://c1")]),
    )
    return SeriesMetrics(store, lambda: [web], lambda: [HostApplication("nginx", "koord-prod", "LS")])


class JudgedOnce:
    cpu_s = 0.5

    def total(self) -> ShadowDay:
        return ShadowDay(day="", shadows={"eager": ShadowCounts(evictions=2, over_acting=Lead().with_one(3.0))})


class DoesNothing:
    def problem(self) -> str | None:
        return None

    def call(self, payload: bytes) -> Ran:
        del payload
        return Ran("done")


@pytest.fixture
def metrics() -> AgentMetrics:
    thread = Supervisor("worker")
    thread.call(lambda: 1 / 0)  # counted for the whole process
    thread.call(lambda: None)
    report_odd("/sys/fs/cgroup/kubepods/memory.stat", b"anon x", "no number")  # as well
    metrics = AgentMetrics(KoordletMetrics("n1", 1.75e9), OwnUsage())
    metrics.decision.is_dry_run = False
    psi = PsiLine(avg10=12.5, avg60=1.0, avg300=0.0, total_us=3_000_000)
    node = NodeMeasure(scope="machine", total_bytes=1 << 30, used_bytes=1 << 29, psi_some=psi, psi_full=psi)
    metrics.node.measured = Measured(2, 1, node, outside=(OutsideMeasure("system.slice", 1 << 28),))
    metrics.node.capacity_bytes = 1 << 30
    metrics.node.series = series_metrics()
    monitor = ResctrlMonitor(Path("/none"), metrics.koordlet_node)
    monitor.monitored = (MonitoredDomain("BE", 0, 4096, 8192, None),)
    protected = MemoryQosRunner(SimpleNamespace(measure=lambda _: None))
    made = MemoryQosDecision(state=Empty(), reason="", protected_bytes={"memory.min": {"Burstable": 4096}})
    protected.act(made, view_of_frame(frame([])))
    metrics.node.strategies += [monitor.families, protected.families]
    metrics.decision.needs = {"BEMemoryEvict": Amount(MEMORY, 4096), "BECPUEvict": Amount(CPU, 1500)}
    metrics.node.marks = {"BEMemoryEvict": {"threshold": 1 << 29, "lower": 1 << 28}}
    metrics.decision.closed_guards = ("pods_stale",)
    metrics.decision.barred_pods = {"gone": 1}
    metrics.decision.exempt_bytes = {"policy": 1}
    metrics.node.eligibility = Eligibility(5, 2, {"unlabelled": 3})
    metrics.signals.quality = SignalQuality("files", "pressure", "watched", "files", "backend files: …")
    metrics.sinks.recorder = RecorderCounts(rounds=5, reach_s={Pace.SECONDS: 3600.0})
    metrics.sinks.shadow = ShadowMetrics(JudgedOnce())
    metrics.pods.by_attribution = {"attributed": 3}
    metrics.pods.synced_age_s = 0.5
    metrics.decision.count_skipped("BEMemoryEvict", "cooling")
    metrics.count_outcome(Outcome("u", "be", "p", "api", Result.DONE, "", 0), "BEMemoryEvict")
    metrics.pods.add_stall("be", "p", "global", 250_000_000)
    web, hog = (Party(uid, "pod", f"ns/{uid}", uid=uid) for uid in ("web", "hog"))
    metrics.ledger.add([Charge(web, hog, 1_500_000_000)])
    cpu = CpuView(CpuMeasured(CpuTopology(())), 4000, allocatable={"kubernetes.io/batch-cpu": 2500})
    seen = view_of_frame(frame([pod("hog")]))
    pods = tuple(msgspec.structs.replace(each, cpu_used_millicpu=100) for each in seen.pods)
    allocatable = {"kubernetes.io/batch-memory": 4096}
    metrics.indicators.record(msgspec.structs.replace(seen, cpu=cpu, allocatable=allocatable, pods=pods))
    held = SuppressionMetrics(metrics.koordlet_node)
    metrics.node.strategies.append(held.families)
    held.held_millicpu, held.policy = 1500, "cpuset"
    metrics.node.file_writes.append(lambda: Counter({("cpu.quota", WriteResult.WRITTEN): 2}))
    held.wake.wakes = {("scheduler", "round"): 3}
    held.wake.cost_ratio, held.wake.sampled_ratio = 0.004, 0.25
    held.wake.waits = RunQueueHistogram(3, 5_000_000, (0, 0, 2, *(0,) * (SLOTS - 4), 1))
    metrics.node.forecast = NodeForecast(threshold=TimeTo(1_000_000_000, 2_000_000_000, None))
    (view,) = view_of_frame(frame([pod("hog")])).pods
    metrics.node.forecast_pods = (msgspec.structs.replace(view, forecast=TimeTo(0, 5, 7)),)
    metrics.sinks.errors = {"audit": 1}
    metrics.sinks.foresight = ForesightSink(EvictionWarningSettings(), "n1", None, dry_run=True)
    hooks = EvictionHooks([(WebhookHook(name="page-me", url="https://pager.example/"), DoesNothing())])
    hooks.close()
    metrics.sinks.hooks = EvictionHookSink(hooks, OpenPlans("n1", dry_run=True))
    metrics.sinks.log_sink = LineSink(lambda _line: None, "log")
    metrics.decision.seen_to_decided.observe_ns(3_000_000)
    metrics.decision.seen_to_decided.observe_ns(5_000_000)  # on a bound: counted at or below it
    metrics.decision.seen_to_decided.observe_ns(9_000_000_000)
    return metrics


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def server(metrics: AgentMetrics, health: Health) -> Iterator[ReportServer]:
    with closing(ReportServer("127.0.0.1:0", metrics, health)) as server:
        yield server


def get(server: ReportServer, path: str, accept: str = "text/plain") -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scrape(server: ReportServer) -> dict[str, list[tuple[dict[str, str], float]]]:
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(get(server, "/metrics")[1]):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def test_names_and_labels(server: ReportServer) -> None:
    assert {name: set(rows[0][0]) for name, rows in scrape(server).items()} == CONTRACT | KOORDLET


def test_names_follow_the_rule(server: ReportServer) -> None:
    ours = scrape(server).keys() - KOORDLET.keys()
    # process_* are the names that all of Prometheus' libraries use.
    assert all(re.fullmatch(r"(koordebpf|process)_[a-z0-9]+(_[a-z0-9]+)*", name) for name in ours)


def metrics_table(server: ReportServer) -> str:
    """Return what deploy/metrics.md holds, made of what a scrape says of itself."""
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family in text_string_to_metric_families(get(server, "/metrics")[1]):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = " ".join(f"`{label}`" for label in family.samples[0].labels if label != "le")
        lines.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(lines)


def test_the_table_for_operators_is_what_a_scrape_says_of_itself(server: ReportServer) -> None:
    written = (Path(__file__).parents[2] / "deploy" / "metrics.md").read_text()
    for line in metrics_table(server).splitlines():
        assert f"{line}\n" in written


def test_evictions_are_counted_by_feature_and_outcome(server: ReportServer, metrics: AgentMetrics) -> None:
    for result in (Result.REFUSED, Result.REFUSED, Result.DONE):
        metrics.count_outcome(Outcome("u", "be", "q", "api", result, "", 0), "MemoryEvict")
    rows = {(each["reason"], each["result"]): count for each, count in scrape(server)["koordebpf_evictions_total"]}
    assert rows == {("BEMemoryEvict", "done"): 1, ("MemoryEvict", "refused"): 2, ("MemoryEvict", "done"): 1}


def test_evictions_begin_at_zero(server: ReportServer, metrics: AgentMetrics) -> None:
    # GIVEN an agent that acts, with these gates on, one of which evicts no pod
    metrics.decision.expect(("MemoryEvict", "BECPUSuppress"), "api", is_dry_run=False)
    # THEN increase() sees the first eviction, too
    rows = {(each["reason"], each["result"]): count for each, count in scrape(server)["koordebpf_evictions_total"]}
    zeros = {("MemoryEvict", result): 0 for result in ("done", "refused", "failed")}
    assert rows == {("BEMemoryEvict", "done"): 1, **zeros}


def test_koordinators_names_count_only_what_was_carried_out(server: ReportServer, metrics: AgentMetrics) -> None:
    for result in Result:
        metrics.count_outcome(Outcome("u", "be", "p", "api", result, "", 0), "MemoryEvict")
    samples = scrape(server)
    assert samples["koordlet_pod_eviction"] == [({"node": "n1", "reason": "evicted"}, 2)]
    detail = {"node": "n1", "pod_namespace": "be", "pod_name": "p", "reason": "evicted"}
    assert samples["koordlet_pod_eviction_detail"] == [(detail, 2)]
    assert samples["koordlet_node_used_memory_bytes"] == [({"node": "n1"}, 1 << 29)]
    assert samples["koordlet_be_suppress_cpu_cores"] == [({"node": "n1", "type": "cpuset"}, 1.5)]
    assert samples["koordlet_start_time"] == [({"node": "n1"}, 1.75e9)]
    assert samples["koordlet_node_used_cpu_cores"] == [({"node": "n1"}, 1.5)]
    assert samples["koordlet_be_suppress_be_used_cpu_cores"] == [({"node": "n1"}, 0.5)]


def test_koordinators_names_of_usage_have_koordlets_labels(server: ReportServer) -> None:
    samples = scrape(server)
    pod = {"node": "n1", "pod_uid": "web", "pod_name": "web-0", "pod_namespace": "shop"}
    container = {**pod, "container_id": "c1", "container_name": "nginx"}
    psi = {"psi_resource_type": "mem", "psi_precision": "avg10", "psi_degree": "some", "cpu_full_supported": "false"}
    assert samples["koordlet_pod_psi"] == [({**pod, **psi}, 12.5)]
    psi = {"psi_resource_type": "cpu", "psi_precision": "avg10", "psi_degree": "full", "cpu_full_supported": "true"}
    assert samples["koordlet_container_psi"] == [({**container, **psi}, 25)]
    assert samples["koordlet_container_cpi"] == [
        ({**container, "cpi_field": "cycles"}, 300), ({**container, "cpi_field": "instructions"}, 200)
    ]  # fmt: skip
    app = {"node": "n1", "host_application_name": "nginx", "priority_class": "koord-prod", "qos": "LS"}
    assert samples["koordlet_host_application_resource_usage"] == [
        ({**app, "resource": "cpu"}, 0.25), ({**app, "resource": "memory"}, 4096)
    ]  # fmt: skip


def test_what_is_not_measured_any_more_has_no_value_under_koordinators_names() -> None:
    store, now_ns = SeriesStore(), time.monotonic_ns()
    store.append_round(now_ns - 11 * NS_PER_S, {("node_cpu_usage",): 1.5, ("host_application_cpu_usage", "nginx"): 1})
    shown = SeriesMetrics(store, tuple, lambda: [HostApplication("nginx")]).koordlet_families("n1", now_ns)
    assert list(shown) == []


@pytest.mark.parametrize("enforce", [True, False])
def test_in_a_dry_run_koordinators_name_does_not_say_that_a_pod_is_limited(enforce: bool) -> None:
    metrics = AgentMetrics(KoordletMetrics("n1", 0.0))
    node = context_of(AgentConfig(enforce=enforce), metrics=metrics)
    runner = suppress_run.open_runner(node)
    assert runner is not None
    runner._metrics.held_millicpu, runner._metrics.policy = 1500, "cpuset"
    names = {each.name for each in runner.families()}
    assert "koordebpf_be_cpu_cores" in names
    assert ("koordlet_be_suppress_cpu_cores" in names) is enforce


class WalkedInPlace(dict[tuple[str, str], int]):
    """What the loop adds to while a scrape walks it."""

    def items(self) -> Any:
        raise RuntimeError("dictionary changed size during iteration")


def test_a_scrape_walks_copies_of_what_the_loop_adds_to(health: Health) -> None:
    metrics, held = AgentMetrics(), SuppressionMetrics()
    metrics.node.strategies.append(held.families)
    held.wake.wakes = WalkedInPlace({("scheduler", "round"): 3})
    with closing(ReportServer("127.0.0.1:0", metrics, health)) as server:
        wakes = scrape(server)["koordebpf_suppression_wakes_total"]
    assert wakes == [({"source": "scheduler", "outcome": "round"}, 3)]


def test_koordinators_names_can_be_left_out(health: Health) -> None:
    with closing(ReportServer("127.0.0.1:0", AgentMetrics(), health)) as server:
        assert not [name for name in scrape(server) if not name.startswith("koordebpf_")]


def test_a_pods_own_counter_ends_and_is_bounded() -> None:
    koordlet = KoordletMetrics("n1", 0.0)
    for n in range(5_000):
        koordlet.count_eviction("be", f"p{n}", n)
    families = {family.name: family.samples for family in koordlet.families(None, 5_000)}
    assert len(families["koordlet_pod_eviction_detail"]) == 500
    assert families["koordlet_pod_eviction"][0].value == 5_000
    later = {family.name: family.samples for family in koordlet.families(None, 301_000_000_000)}
    assert later["koordlet_pod_eviction_detail"] == []
    assert later["koordlet_pod_eviction"][0].value == 5_000


def test_values(server: ReportServer) -> None:
    samples = scrape(server)
    assert samples["koordebpf_pod_stall_seconds_total"] == [({"namespace": "be", "pod": "p", "scope": "global"}, 0.25)]
    assert samples["koordebpf_need_cpu_cores"] == [({"feature": "BECPUEvict"}, 1.5)]
    assert samples["koordebpf_node_psi_avg10_ratio"][0] == ({"degree": "some"}, 0.125)
    assert samples["koordebpf_stall_charged_seconds_total"] == [({"victim": "ns/web", "cause": "ns/hog"}, 1.5)]
    assert samples["koordebpf_node_forecast_seconds"] == [
        ({"mark": "threshold", "bound": "low"}, 1.0),
        ({"mark": "threshold", "bound": "point"}, 2.0),
    ]
    buckets = {row[0]["le"]: row[1] for row in samples["koordebpf_crossing_to_decision_seconds_bucket"]}
    assert (buckets["0.0025"], buckets["0.005"], buckets["2.5"], buckets["+Inf"]) == (0, 2, 2, 3)
    assert samples["process_resident_memory_bytes"][0][1] > 1 << 20
    waits = {row[0]["le"]: row[1] for row in samples["koordebpf_run_queue_wait_seconds_bucket"]}
    assert (waits["4e-06"], waits["8e-06"], waits["+Inf"]) == (0, 2, 3)
    assert samples["koordebpf_run_queue_wait_seconds_sum"] == [({}, 0.005)]


def test_openmetrics_parses(server: ReportServer) -> None:
    status, text = get(server, "/metrics", "application/openmetrics-text; version=1.0.0")
    assert status == 200
    assert {family.name for family in parse_openmetrics(text)} >= {"koordebpf_released_bytes", "koordebpf_evictions"}


def test_what_holds_memory_sums_to_what_is_in_use(server: ReportServer) -> None:
    samples = scrape(server)
    ((_, used),) = samples["koordebpf_node_used_bytes"]
    parts = {labels["held_by"]: value for labels, value in samples["koordebpf_node_memory_bytes"]}
    assert parts == {"pods": 0, "outside": 1 << 28, "unexplained": 1 << 28}
    assert sum(parts.values()) == used


def test_what_was_not_measured_is_absent_not_zero(server: ReportServer, metrics: AgentMetrics) -> None:
    metrics.node.measured = Measured(2, 1, NodeMeasure(scope="cgroup", total_bytes=1, used_bytes=1))
    metrics.pods.synced_age_s = None
    samples = scrape(server)
    assert "koordebpf_node_psi_avg10_ratio" not in samples
    assert "koordebpf_node_memory_bytes" not in samples
    assert "koordebpf_pods_age_seconds" not in samples


def test_pod_series_are_bounded_and_nothing_is_lost(server: ReportServer, metrics: AgentMetrics) -> None:
    for n in range(5_000):
        metrics.pods.add_stall("be", f"p{n}", "global", 1_000_000_000)
    rows = scrape(server)["koordebpf_pod_stall_seconds_total"]
    most = PodSeries.of(POD_SERIES).stalls
    assert len(rows) == most + 1
    assert sum(value for _, value in rows) == pytest.approx(5_000.25)
    assert [value for labels, value in rows if labels["pod"] == "_other"] == [5_000 - (most - 1)]
    metrics.pods.keep_only([("be", "p1")])
    assert {labels["pod"] for labels, _ in scrape(server)["koordebpf_pod_stall_seconds_total"]} == {"p1", "_other"}


def test_health_and_readiness(server: ReportServer, health: Health) -> None:
    assert get(server, "/healthz") == (503, "no tick yet\n")
    assert json.loads(get(server, "/readyz")[1]) == {"ready": False, "reasons": ["no tick yet"]}
    health.ticked(time.monotonic_ns(), ("the list of pods is 40 s old > 30 s",))
    assert get(server, "/healthz") == (200, "ok\n")
    status, body = get(server, "/readyz")
    assert status == 503 and json.loads(body)["reasons"] == ["the list of pods is 40 s old > 30 s"]
    health.ticked(time.monotonic_ns(), ())
    assert get(server, "/readyz")[0] == 200
    health.ticked(time.monotonic_ns() - 11_000_000_000, ())
    assert get(server, "/healthz")[0] == 503
    assert get(server, "/readyz")[0] == 503


def test_readiness_says_what_the_signals_are_worth_and_which_are_lost(server: ReportServer, health: Health) -> None:
    quality = SignalQuality("co-re", "timed", "traced", "one pass", "backend co-re: each stall is timed")
    health.ticked(time.monotonic_ns(), ())
    health.rests_on(quality, ())
    assert json.loads(get(server, "/readyz")[1]) == {
        "ready": True,
        "reasons": [],
        "signals": {
            "backend": "co-re",
            "stalls": "timed",
            "births": "traced",
            "scan": "one pass",
            "sentence": "backend co-re: each stall is timed",
        },
    }
    assert get(server, "/readyz?verbose") == (200, "[+]backend co-re: each stall is timed\nreadyz check passed\n")
    health.rests_on(quality, ("global reclaim stalls: its program runs no more",))
    status, text = get(server, "/readyz?verbose")
    assert status == 503
    assert text.splitlines()[0] == "[-]global reclaim stalls: its program runs no more"
    assert text.splitlines()[-1] == "readyz check failed"
    health.ticked(time.monotonic_ns(), ())
    assert json.loads(get(server, "/readyz")[1])["reasons"] == ["global reclaim stalls: its program runs no more"]


def test_other_paths_and_methods(server: ReportServer) -> None:
    for path in ("/decisions", "/writes"):  # on a Unix socket: they have UIDs
        code, text = get(server, path)
        assert (code, "koordebpf explain" in text) == (404, True)
    assert get(server, "/")[0] == 404
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/metrics", data=b"x")
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=10)
    with error.value as answer:
        assert answer.code == 405


def test_rubbish_is_answered_and_forgotten(server: ReportServer, health: Health) -> None:
    health.ticked(time.monotonic_ns(), ())
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(b"\x00\xff rubbish\r\n\r\n")
        while client.recv(4096):
            pass
    assert get(server, "/healthz")[0] == 200


@pytest.mark.parametrize("listen", ["9320", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1:²"])
def test_a_bad_address_names_the_rule(listen: str, metrics: AgentMetrics, health: Health) -> None:
    with pytest.raises(ConfigError, match="--listen"):
        ReportServer(listen, metrics, health)


def test_an_address_in_use_ends_the_start(server: ReportServer, metrics: AgentMetrics, health: Health) -> None:
    with pytest.raises(ConfigError, match="in use"):
        ReportServer(f"127.0.0.1:{server.port}", metrics, health)
