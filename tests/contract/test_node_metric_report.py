"""Reports of a node against an API server: what is sent, to whom the object is left, and a server that is slow."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.jobs.node_metric import sending as sending_module
from koordebpf.kube.cache.reflector import Pace
from koordebpf.units import NS_PER_S
from tests.contract.apiserver import Exchange, Server, gives, status, until
from tests.contract.node_metric_server import NodeMetrics
from tests.support.node_metric_reports import Reporting
from tests.support.patience import patience

PACE = Pace(first_s=0.02, cap_s=0.05, slow_s=0.05, watch_s=30, grace_s=30.0, answer_s=10.0)
INTERVAL_NS = 60 * NS_PER_S


def status_of(millicpu: int, pods: int = 2) -> dict[str, Any]:
    used = {"resources": {"cpu": f"{millicpu}m", "memory": "1Gi"}}
    named = [{"name": f"p{n:03}", "namespace": "be", "podUsage": used, "qos": "BE"} for n in range(pods)]
    return {"nodeMetric": {"nodeUsage": used}, "podsMetric": named}


class Rig(Reporting):
    """A reporter and its watch, on one server."""

    def __init__(self, kubeconfig: Path, server: Server, interval_ns: int = INTERVAL_NS) -> None:
        self.metrics = NodeMetrics(server)
        self._count = 0
        super().__init__(kubeconfig, "n1", PACE, interval_ns)

    def report(self, millicpu: int, pods: int = 2) -> dict[str, Any]:
        self._count += 1
        update_time = f"2026-01-02T03:{self._count // 60:02}:{self._count % 60:02}Z"
        return self.send({"updateTime": update_time, **status_of(millicpu, pods)})


@pytest.fixture(autouse=True)
def without_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending_module, "_BURST_NS", 0)


@pytest.fixture
def rig(kubeconfig: Path, server: Server) -> Iterator[Rig]:
    with contextlib.closing(Rig(kubeconfig, server)) as made:
        made.reflector.start()
        yield made


def test_a_report_arrives_as_it_was_made_and_then_what_moved_alone(rig: Rig) -> None:
    first = rig.report(100)
    until(lambda: rig.metrics.status == first, "the first report")
    (request,) = rig.metrics.patches
    assert (request.method, request.query) == ("PATCH", {"fieldManager": "koordebpf"})
    assert request.headers["content-type"] == "application/json-patch+json"
    assert [each["path"] for each in json.loads(request.body)] == ["/metadata/resourceVersion", "/status"]
    second = rig.report(200)
    until(lambda: rig.metrics.status == second, "the second one")
    paths = [each["path"] for each in json.loads(rig.metrics.patches[-1].body)]
    assert paths == [
        "/metadata/resourceVersion",
        "/status/updateTime",
        "/status/nodeMetric/nodeUsage/resources/cpu",
        "/status/podsMetric/0/podUsage/resources/cpu",
        "/status/podsMetric/1/podUsage/resources/cpu",
    ]
    rig.report(201)
    until(lambda: rig.reporter.held == "quiet", "that nothing moved")
    assert rig.metrics.status == second
    assert rig.reporter.counts.written == 2
    assert rig.reporter.counts.bytes == sum(len(each.body) for each in rig.metrics.patches)


def test_a_spec_that_the_manager_writes_meanwhile_stays(rig: Rig) -> None:
    until(lambda: rig.report(100) and rig.metrics.applied, "the first report")
    rig.metrics.write("koord-manager", "", spec={"metricCollectPolicy": {"reportIntervalSeconds": 30}})
    made = rig.report(300)
    until(lambda: rig.metrics.status == made, "the second one")
    assert rig.metrics.object["spec"] == {"metricCollectPolicy": {"reportIntervalSeconds": 30}}


def test_a_conflict_is_tried_again_with_the_newest_version(rig: Rig) -> None:
    def another_is_first(exchange: Exchange) -> None:
        # The watch says it too; the answer is sooner.
        rig.metrics.write("koord-manager", "", spec={"other": 1})
        exchange.answer(409, status(409, "Conflict", "the object has been modified"))

    rig.metrics.answers.append(another_is_first)
    made = rig.report(100)
    until(lambda: rig.metrics.status == made, "the report")
    assert rig.reporter.counts.conflicts == 1
    assert rig.reporter.problem is None


@pytest.mark.parametrize("code", [500, 503, 429, 422])
def test_after_an_error_it_is_sent_again(rig: Rig, code: int, caplog: pytest.LogCaptureFixture) -> None:
    refused = gives(code, status(code, "Reason", "not now"), Retry_After="0")
    rig.metrics.answers += [refused, refused]
    with caplog.at_level(logging.INFO):
        made = rig.report(100)
        until(lambda: rig.metrics.status == made, "the report")
        until(lambda: rig.reporter.problem is None, "that all is well")
    assert rig.reporter.counts.failures == 2
    assert sum("is not written" in each for each in caplog.messages) == 1
    assert "the NodeMetric of this node is written again" in caplog.messages


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"metadata": 5}', b"[" * 100_000])
def test_an_answer_that_is_no_node_metric_is_a_failure_and_no_end(rig: Rig, body: bytes) -> None:
    rig.metrics.answers.append(gives(200, body))
    made = rig.report(100)
    until(lambda: rig.metrics.status == made, "the report")
    until(lambda: rig.reporter.problem is None, "that all is well")
    assert rig.reporter.counts.failures == 1


def test_without_the_right_it_says_which_and_continues(rig: Rig) -> None:
    rig.metrics.answers.append(gives(403, status(403, "Forbidden", "no")))
    rig.report(100)
    until(lambda: rig.reporter.problem, "the problem")
    assert rig.reporter.problem is not None
    assert "needs RBAC verb patch on nodemetrics/status" in rig.reporter.problem


def test_without_an_object_nothing_is_sent_and_it_is_said_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    until(lambda: rig.report(100) and rig.metrics.applied, "the first report")
    rig.metrics.delete()
    until(lambda: rig.report(200) and rig.reporter.held == "absent", "that it is gone")
    sent = len(rig.metrics.patches)
    for millicpu in range(300, 400, 10):
        rig.report(millicpu)
    assert sum("there is no NodeMetric" in each for each in caplog.messages) == 1
    rig.metrics.make_again()
    made = rig.report(500)
    until(lambda: rig.metrics.status == made, "a whole report")
    assert [each["path"] for each in json.loads(rig.metrics.patches[sent].body)][-1] == "/status"


def test_an_object_that_is_deleted_under_a_patch_is_no_end(rig: Rig) -> None:
    def is_gone(exchange: Exchange) -> None:
        rig.metrics.delete()
        exchange.answer(404, status(404, "NotFound", "not found"))

    rig.metrics.answers.append(is_gone)
    rig.report(100)
    until(lambda: rig.reporter.held == "absent", "that it is gone")
    rig.metrics.make_again()
    made = rig.report(200)
    until(lambda: rig.metrics.status == made, "the report")


def test_an_error_of_its_own_does_not_end_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Any:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(rig.reporter._sending, "step", fails)
        rig.report(100)
        until(lambda: "ZeroDivisionError" in caplog.text, "what it says")
    assert rig.reporter._thread.is_alive()
    rig.reporter._not_before_ns = 0
    made = rig.report(200)
    until(lambda: rig.metrics.status == made, "the report")


class TestTwoWriters:
    def test_koordlets_object_is_left_alone_until_it_falls_silent_and_again_when_it_returns(
        self, kubeconfig: Path, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        with contextlib.closing(Rig(kubeconfig, server, NS_PER_S // 2)) as rig:
            theirs = {"updateTime": "2026-01-02T00:00:00Z", **status_of(1)}
            rig.metrics.write("koordlet", "status", status=theirs)
            rig.reflector.start()
            until(lambda: rig.report(100) and rig.reporter.held == "other", "that another writes")
            assert rig.reporter.other_writer == "koordlet"
            assert not rig.metrics.patches
            # Silent for two intervals.
            made = rig.report(200)
            until(lambda: rig.metrics.status == made, "the report in its place")
            theirs = {"updateTime": "2026-01-02T00:01:00Z", **status_of(2)}
            rig.metrics.write("koordlet", "status", status=theirs)
            until(lambda: rig.report(300) and rig.reporter.held == "other", "that it is back")
            assert rig.metrics.status == theirs
        said = [each for each in caplog.messages if "koordlet" in each]
        assert said == [
            "koordlet writes the NodeMetric of this node: it is left alone",
            "koordlet writes the NodeMetric of this node no more: it is reported from here",
            "koordlet writes the NodeMetric of this node: it is left alone",
        ]


class TestSlowServers:
    def test_one_that_answers_late_is_waited_for_and_meanwhile_reports_are_replaced(self, rig: Rig) -> None:
        rig.metrics.delay_s = 0.5
        made = [rig.report(100 * n) for n in range(1, 6)]
        until(lambda: rig.metrics.status == made[-1], "the last one")
        assert len(rig.metrics.patches) <= 3

    def test_one_that_never_answers_holds_the_next_try_up_for_the_timeout_alone(self, rig: Rig) -> None:
        rig.reporter._sending._timeout_s = 0.15
        rig.metrics.answers += [lambda exchange: exchange.hold()] * 2
        made = rig.report(100)
        until(lambda: rig.metrics.status == made, "the report")
        assert rig.reporter._sending._timeout_s >= 0.6  # it was given more time with each try
        assert len(rig.metrics.patches) == 3

    def test_one_that_carried_it_out_without_an_answer_is_not_asked_again(self, rig: Rig) -> None:
        rig.reporter._sending._timeout_s = 0.15

        def late(exchange: Exchange) -> None:
            with rig.metrics._lock:
                rig.metrics._changed(exchange.request)
            exchange.hold()

        rig.metrics.answers.append(late)
        made = rig.report(100)
        until(lambda: rig.reporter.counts.failures, "the failure")
        until(lambda: rig.reporter.held == "quiet", "that it arrived")
        assert rig.metrics.status == made
        assert len(rig.metrics.patches) == 1

    def test_it_ends_within_moments_while_a_request_hangs(self, kubeconfig: Path, server: Server) -> None:
        rig = Rig(kubeconfig, server)
        rig.reflector.start()
        rig.metrics.answers.append(lambda exchange: exchange.hold())
        rig.report(100)
        until(lambda: rig.metrics.patches, "the request")
        began = time.monotonic()
        rig.close()
        assert time.monotonic() - began < patience(10)
