"""What Katalyst's manager shows of itself over HTTP, in the audit and in the log."""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from koordebpf.agent.sinks import open_sinks
from koordebpf.policy.strategy import RequestNews
from koordebpf.report.http.local_socket import LocalSocket, asked
from koordebpf.report.http.routes import DecisionServer, Health, ReportServer
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.report.recent import Recent
from koordebpf.store.audit import AuditLog
from koordebpf.store.open_plans import OpenPlans
from koordebpf.store.sink import AgentStopped, StrategyActed
from koordebpf.store.write_log import AuditedRequest
from koordebpf.strategies.katalyst.values import REPORT_TAINT, KatalystFacts, PluginAnswer
from tests.strategies.katalyst.test_katalyst_frames import kpod
from tests.support.katalyst_scrape import ScrapedNode

NEWS = RequestNews("disk", "u-1", "shop", "web", "refused", "no_candidate", "it is no candidate")


@pytest.fixture
def server() -> Iterator[tuple[ScrapedNode, ReportServer]]:
    node = ScrapedNode([kpod("batch")])
    node.health.ticked(1 << 62, ())
    with closing(ReportServer("127.0.0.1:0", node.metrics, node.health)) as server:
        yield node, server


def get(server: ReportServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_readyz_names_what_fails_and_stays_ready(server: tuple[ScrapedNode, ReportServer]) -> None:
    node, http = server
    node.facts = KatalystFacts({REPORT_TAINT: "403: allow patch on nodes"})
    node.answer(PluginAnswer("disk", problem="ThresholdMet: \x1b[2J no answer in time"))
    status, text = get(http, "/readyz?verbose")
    assert status == 200
    assert any(line.startswith(f"[!]{REPORT_TAINT} ") for line in text.splitlines())
    assert any(line.startswith("[!]plugin disk ") for line in text.splitlines())
    assert "\x1b" not in text
    assert text.endswith("readyz check passed\n")
    parts = {each["name"]: each["problem"] for each in json.loads(get(http, "/readyz")[1])["parts"]}
    assert parts.keys() == {"eviction_manager_sync", REPORT_TAINT, "plugin disk"}


def test_without_the_feature_gate_readyz_is_as_it_was() -> None:
    health = Health()
    health.ticked(1 << 62, ())
    with closing(ReportServer("127.0.0.1:0", AgentMetrics(), health)) as http:
        assert json.loads(get(http, "/readyz")[1]) == {"ready": True, "reasons": []}


def test_a_request_that_is_not_carried_out_is_in_audit_log_and_socket(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plans, path = OpenPlans("n1", dry_run=False), tmp_path / "audit.jsonl"
    recent = Recent(plans)
    sinks = open_sinks(plans, AgentMetrics(), Health(), recent, audit=AuditLog(path))
    with caplog.at_level(logging.INFO, "koordebpf"):
        sinks.publish(StrategyActed("plugins", (NEWS,), 1, 1.5))
    local = LocalSocket(tmp_path / "run", acts=True)
    with closing(DecisionServer(local, recent.decisions, recent.writes, None, recent.requests)):
        (socket,) = (tmp_path / "run").glob("*.sock")
        (found,) = msgspec.json.decode(asked(socket, "requests"), type=list[AuditedRequest])
    sinks.publish(AgentStopped(2))
    assert found.request == NEWS
    (line,) = path.read_bytes().splitlines()
    assert msgspec.json.decode(line, type=AuditedRequest) == found
    assert "disk asks for shop/web and is refused: it is no candidate" in caplog.text
    assert sinks.errors == {}


def test_the_last_requests_are_remembered_and_no_more() -> None:
    recent = Recent(OpenPlans("n1", dry_run=False))
    for number in range(600):
        news = msgspec.structs.replace(NEWS, uid=f"u-{number}")
        recent.publish(StrategyActed("plugins", (news,), number, 0.0))
    assert [each.request.uid for each in recent.requests()] == [f"u-{number}" for number in range(100, 600)]
