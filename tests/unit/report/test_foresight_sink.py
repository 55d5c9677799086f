"""What is said of evictions ahead: log, Events on the node and on pods, metrics."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from koordebpf.policy.foresight import EvictionWarningSettings
from koordebpf.report.events import PodEvent
from koordebpf.report.foresight import ForesightSink
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.state.guard_facts import ClosedGuard
from koordebpf.state.measured import NodeForecast, TimeTo
from koordebpf.store.sink import RoundEnded
from koordebpf.units import NS_PER_S
from tests.support.values.rounds import round_ended

SETTINGS = EvictionWarningSettings()


def look(second: float, forecast_s: float | None, used_mib: int = 700, **asked: int) -> RoundEnded:
    """Return a round whose threshold is so far off; it is 800 MiB of 1000."""
    ended = round_ended(second, used_mib=used_mib, **asked)
    ns = None if forecast_s is None else int(forecast_s * NS_PER_S)
    found = None if ns is None else NodeForecast(threshold=TimeTo(ns // 2, ns, 2 * ns))
    return replace(ended, view=replace(ended.view, forecast=found, wall_s=1_800_000_000.0))


class Rig:
    def __init__(self, *, dry_run: bool = False) -> None:
        self.posted: list[PodEvent] = []
        self.sink = ForesightSink(SETTINGS, "n1", lambda event, _: self.posted.append(event), dry_run=dry_run)

    def warned(self, **asked: int) -> None:
        for second in (0, 1):
            self.sink.publish(look(second, 18, **asked))


@pytest.mark.parametrize(
    ("dry_run", "node", "pod"), [(True, "would evict", "would be evicted"), (False, "evicts", "is")]
)
def test_node_and_pods_get_an_event_each(dry_run: bool, node: str, pod: str, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(dry_run=dry_run)
    rig.sink.publish(look(0, 18))
    assert rig.posted == []
    rig.sink.publish(look(1, 18))
    of_node, *of_pods = rig.posted
    assert (of_node.about, of_node.namespace, of_node.name, of_node.uid) == ("Node", "", "n1", "n1")
    assert (of_node.kind, of_node.reason) == ("Warning", "EvictionSoon")
    assert of_node.message == (
        f"n1 {node} in 18 s: memory in use, now 700 MiB, is forecast to reach 80 % (800 MiB) in 9 s to 36 s;"
        " first spark/job-0"
    )
    assert [each.about for each in of_pods] == ["Pod"]
    assert of_pods[0].message.startswith(f"spark/job-0 {pod} ")
    assert "in 18 s, alone: memory in use" in of_pods[0].message
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.WARNING, of_node.message)


def test_at_most_three_pods_are_warned() -> None:
    rig = Rig()
    # GIVEN a hundred pods of a MiB, of which all are needed
    ended = [look(second, 18, pods=6, seed=1) for second in (0, 1)]
    for each in ended:
        rig.sink.publish(each)
    assert 1 <= len([each for each in rig.posted if each.about == "Pod"]) <= 3


def test_a_closed_guard_is_named() -> None:
    rig = Rig()
    for second in (0, 1):
        ended = look(second, 18)
        guards = (ClosedGuard("pods_stale", "the list is old"),)
        rig.sink.publish(replace(ended, decision=replace(ended.decision, holding=guards)))
    assert all(each.message.endswith("; held back now: the list is old") for each in rig.posted)


def test_without_an_api_server_the_log_says_it(caplog: pytest.LogCaptureFixture) -> None:
    sink = ForesightSink(SETTINGS, "n1", None, dry_run=True)
    for second in (0, 1):
        sink.publish(look(second, 18))
    assert "n1 would evict in 18 s" in caplog.text


def test_a_node_without_candidates_says_so() -> None:
    rig = Rig()
    for second in (0, 1):
        ended = look(second, 18)
        rig.sink.publish(replace(ended, view=replace(ended.view, pods=())))
    (of_node,) = rig.posted
    assert of_node.message.endswith("; no pod could be evicted")


def test_what_became_of_it_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig()
    rig.warned()
    rig.sink.publish(look(16, 0, used_mib=800))
    assert "the threshold is reached 15 s after the warning" in caplog.text
    for second in (20, 80):
        rig.sink.publish(look(second, None))
    for second in (100, 101, 102, 162):
        rig.sink.publish(look(second, 18 if second < 102 else None))
    assert "the warning of 61 s ago came to nothing" in caplog.text
    rig.sink.publish(look(170, None, used_mib=800))
    assert rig.sink.counts == {"warned": 2, "came_true": 1, "came_to_nothing": 1, "unforeseen": 1}
    assert len(rig.posted) == 4


def test_the_metrics_show_it() -> None:
    rig = Rig()
    rig.warned()
    rig.sink.publish(look(16, 0, used_mib=800))
    metrics = AgentMetrics()
    metrics.sinks.foresight = rig.sink
    registry = CollectorRegistry()
    registry.register(metrics)
    page = generate_latest(registry).decode()
    assert 'koordebpf_eviction_warnings_total{event="came_true"} 1.0' in page
    assert 'koordebpf_eviction_warning_lead_seconds_bucket{le="20.0"} 1.0' in page


def test_a_hostile_name_is_printable() -> None:
    rig = Rig()
    for second in (0, 1):
        ended = look(second, 18)
        pods = tuple(replace(each, name="\x1b]0;x\x07\n") for each in ended.view.pods)
        rig.sink.publish(replace(ended, view=replace(ended.view, pods=pods)))
    assert rig.posted
    assert all(each.message.isprintable() for each in rig.posted)
