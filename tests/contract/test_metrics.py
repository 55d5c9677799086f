"""What a Prometheus server and the kubelet's probes see, over the real socket."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from koordebpf.act.outcome import Outcome, Result
from koordebpf.errors import ConfigError
from koordebpf.kernel.self_usage import SelfUsageReader
from koordebpf.report.http import Health, ReportServer
from koordebpf.report.metrics import MAX_POD_SERIES, AgentMetrics
from koordebpf.state.view import NodeMeasure, PsiLine

# Name → labels. A dashboard or an alert somewhere rests on each of these: a change here is a change for its readers.
CONTRACT = {
    "koordebpf_build_info": {"version"},
    "koordebpf_need_bytes": {"feature"},
    "koordebpf_pending_release_bytes": set(),
    "koordebpf_released_bytes_total": set(),
    "koordebpf_evictions_total": {"executor", "result"},
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
    "koordebpf_pods": {"state"},
    "koordebpf_pods_age_seconds": set(),
    "koordebpf_records_total": set(),
    "koordebpf_lost_records_total": set(),
    "koordebpf_audit_dropped_total": set(),
    "koordebpf_events_dropped_total": set(),
    "koordebpf_node_used_bytes": set(),
    "koordebpf_node_capacity_bytes": set(),
    "koordebpf_node_psi_avg10_ratio": {"degree"},
    "koordebpf_node_psi_stall_seconds_total": {"degree"},
    "koordebpf_ticks_total": set(),
    "koordebpf_failed_ticks_total": set(),
    "koordebpf_own_cpu_seconds_total": set(),
    "koordebpf_own_resident_bytes": set(),
    "koordebpf_own_threads": set(),
    "koordebpf_own_open_fds": set(),
}


@pytest.fixture
def metrics() -> AgentMetrics:
    metrics = AgentMetrics(SelfUsageReader().read)
    psi = PsiLine(avg10=12.5, avg60=1.0, avg300=0.0, total_us=3_000_000)
    metrics.node = NodeMeasure(scope="machine", total_bytes=1 << 30, used_bytes=1 << 29, psi_some=psi, psi_full=psi)
    metrics.capacity_bytes = 1 << 30
    metrics.need_bytes = {"BEMemoryEvict": 4096}
    metrics.closed_guards = ("pods_stale",)
    metrics.pods_by_attribution = {"attributed": 3}
    metrics.pods_synced_age_s = 0.5
    metrics.count_skipped("BEMemoryEvict", "cooling")
    metrics.count_outcome(Outcome("u", "be", "p", "api", Result.DONE, "", 0))
    metrics.add_stall("be", "p", "global", 250_000_000)
    metrics.seen_to_decided.observe_ns(3_000_000)
    metrics.seen_to_decided.observe_ns(5_000_000)  # on a bound: counted at or below it
    metrics.seen_to_decided.observe_ns(9_000_000_000)
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
    assert {name: set(rows[0][0]) for name, rows in scrape(server).items()} == CONTRACT


def test_names_follow_the_rule(server: ReportServer) -> None:
    assert all(re.fullmatch(r"koordebpf_[a-z0-9]+(_[a-z0-9]+)*", name) for name in scrape(server))


def test_values(server: ReportServer) -> None:
    samples = scrape(server)
    assert samples["koordebpf_pod_stall_seconds_total"] == [({"namespace": "be", "pod": "p", "scope": "global"}, 0.25)]
    assert samples["koordebpf_node_psi_avg10_ratio"][0] == ({"degree": "some"}, 0.125)
    buckets = {row[0]["le"]: row[1] for row in samples["koordebpf_crossing_to_decision_seconds_bucket"]}
    assert (buckets["0.0025"], buckets["0.005"], buckets["2.5"], buckets["+Inf"]) == (0, 2, 2, 3)
    assert samples["koordebpf_own_resident_bytes"][0][1] > 1 << 20


def test_openmetrics_parses(server: ReportServer) -> None:
    status, text = get(server, "/metrics", "application/openmetrics-text; version=1.0.0")
    assert status == 200
    assert {family.name for family in parse_openmetrics(text)} >= {"koordebpf_released_bytes", "koordebpf_evictions"}


def test_what_was_not_measured_is_absent_not_zero(server: ReportServer, metrics: AgentMetrics) -> None:
    metrics.node = NodeMeasure(scope="cgroup", total_bytes=1, used_bytes=1)
    metrics.pods_synced_age_s = None
    samples = scrape(server)
    assert "koordebpf_node_psi_avg10_ratio" not in samples
    assert "koordebpf_pods_age_seconds" not in samples


def test_pod_series_are_bounded_and_nothing_is_lost(server: ReportServer, metrics: AgentMetrics) -> None:
    for n in range(5_000):
        metrics.add_stall("be", f"p{n}", "global", 1_000_000_000)
    rows = scrape(server)["koordebpf_pod_stall_seconds_total"]
    assert len(rows) == MAX_POD_SERIES + 1
    assert sum(value for _, value in rows) == pytest.approx(5_000.25)
    assert [value for labels, value in rows if labels["pod"] == "_other"] == [5_000 - (MAX_POD_SERIES - 1)]
    metrics.keep_pods([("be", "p1")])
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


def test_other_paths_and_methods(server: ReportServer) -> None:
    assert get(server, "/")[0] == 404
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/metrics", data=b"x")
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=10)
    with error.value as answer:
        assert answer.code == 405


def test_silent_clients_do_not_stop_the_probes(server: ReportServer, health: Health) -> None:
    health.ticked(time.monotonic_ns(), ())
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
    try:
        assert get(server, "/healthz")[0] == 200
    finally:
        for client in silent:
            client.close()


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
