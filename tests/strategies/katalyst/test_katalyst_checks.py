"""The heartbeats of Katalyst's eviction manager, as /readyz shows them."""

from __future__ import annotations

from koordebpf.strategies.katalyst.metrics import KatalystChecks
from koordebpf.strategies.katalyst.values import REPORT_TAINT, KatalystFacts, PluginAnswer
from koordebpf.units import NS_PER_S

SYSTEM = "system-memory-pressure-eviction-plugin"
NUMA = "numa-memory-pressure-eviction-plugin"


def failing(checks: KatalystChecks, at_s: float) -> dict[str, str]:
    found = ((each.name, each.failure(int(at_s * NS_PER_S))) for each in checks.now.every)
    return {name: why for name, why in found if why is not None}


def test_before_the_first_round_nothing_works_yet() -> None:
    assert failing(KatalystChecks(5 * NS_PER_S), 0) == {"eviction_manager_sync": "no answer yet"}


def test_a_manager_that_misses_three_rounds_fails() -> None:
    checks = KatalystChecks(5 * NS_PER_S)
    checks.round_ended([PluginAnswer(SYSTEM)], (), 0)
    assert failing(checks, 15) == {}
    assert failing(checks, 16) == {"eviction_manager_sync": "no answer for 16 s > 15 s"}


def test_a_plugin_inside_lacks_input_and_one_outside_has_failed() -> None:
    checks = KatalystChecks(5 * NS_PER_S)
    answers = [PluginAnswer(NUMA, problem="no NUMA nodes"), PluginAnswer("disk", problem="no answer in time")]
    checks.round_ended(answers, ("disk",), 0)
    assert failing(checks, 1) == {
        "plugin disk": "failed: no answer in time",
        f"plugin {NUMA}": "lacks input: no NUMA nodes",
    }


def test_a_plugin_that_is_registered_and_never_answers_fails_and_one_that_left_is_no_check() -> None:
    checks = KatalystChecks(5 * NS_PER_S)
    checks.round_ended([PluginAnswer(SYSTEM)], ("disk",), 0)
    assert failing(checks, 1) == {"plugin disk": "no answer yet"}
    checks.round_ended([], (), NS_PER_S)
    assert failing(checks, 1) == {}


def test_a_plugin_that_is_silent_for_a_minute_fails() -> None:
    checks = KatalystChecks(5 * NS_PER_S)
    checks.round_ended([PluginAnswer("disk")], ("disk",), 0)
    checks.round_ended([PluginAnswer(SYSTEM)], ("disk",), 61 * NS_PER_S)
    assert failing(checks, 61) == {"plugin disk": "no answer for 61 s > 60 s"}


def test_what_reports_conditions_fails_with_its_problem_and_when_it_is_silent() -> None:
    checks = KatalystChecks(5 * NS_PER_S)
    checks.round_ended([PluginAnswer(SYSTEM)], (), 0)
    checks.acted(KatalystFacts({REPORT_TAINT: "403: allow patch on nodes"}), 0)
    assert failing(checks, 1) == {REPORT_TAINT: "403: allow patch on nodes"}
    checks.acted(KatalystFacts({REPORT_TAINT: None}), 0)
    assert failing(checks, 14) == {}
    assert REPORT_TAINT in failing(checks, 16)


def test_a_socket_without_a_plugin_is_named() -> None:
    checks = KatalystChecks(5 * NS_PER_S)
    checks.acted(KatalystFacts(sockets={"/socks/a.sock": "it supports v2, not v1alpha1"}), 0)
    assert failing(checks, 0)["socket /socks/a.sock"] == "no plugin: it supports v2, not v1alpha1"
    checks.acted(KatalystFacts(sockets={f"/socks/{number}": "no" for number in range(500)}), 0)
    assert len(checks.now.sockets) == 20


def test_a_plugin_with_the_name_of_a_part_of_the_manager_hides_nothing() -> None:
    checks = KatalystChecks(5 * NS_PER_S)
    checks.round_ended([PluginAnswer("eviction_manager_sync", problem="no")], ("eviction_manager_sync",), 0)
    assert failing(checks, 16) == {
        "eviction_manager_sync": "no answer for 16 s > 15 s",
        "plugin eviction_manager_sync": "failed: no",
    }
