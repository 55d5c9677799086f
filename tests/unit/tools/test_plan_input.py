"""One moment of a node under the settings of files and of the command line."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickFrame, TickSettings
from koordebpf.errors import ConfigError
from koordebpf.state.guard_facts import ClosedGuard, GuardFacts
from koordebpf.state.view import PastEviction
from koordebpf.state.what_if import Setting
from koordebpf.tools.plan import Case, case_changes, case_of_tick, with_entries, with_feature_gates, with_file
from koordebpf.units import NS_PER_S
from tests.support.values.builders import NOW_NS, frame, pod

AGENT = b"""
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
compat: strict
executor: {type: cgroup}
eviction: {minAge: 1h}
featureGates: {MemoryEvict: true}
"""
NODESLO = {
    "apiVersion": "slo.koordinator.sh/v1alpha1",
    "kind": "NodeSLO",
    "spec": {"resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 95}},
}
CONFIGMAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "slo-controller-config"},
    "data": {"resource-threshold-config": '{"clusterStrategy": {"enable": false}}'},
}


def case() -> Case:
    return Case(frame([pod("hog", anon=300), pod("small", anon=200)], used=900))


def changes(after: Case) -> dict[str, tuple[object, object]]:
    return {each.name: (each.before, each.after) for each in case_changes(case(), after)}


def test_the_agents_file_sets_how_it_evicts() -> None:
    assert changes(with_file(case(), "a.yaml", AGENT)) == {
        "MemoryEvict": (False, True),
        "executor.type": ("api", "cgroup"),
        "eviction.preferAggressor": (True, False),
        "eviction.spreadOwners": (True, False),
        "eviction.maxGraceSeconds": (30, None),
        "eviction.minAge": ("0s", "1h"),
        "compat": ("none", "strict"),
    }


def test_a_nodeslo_and_a_configmap_set_when() -> None:
    slo = with_file(case(), "slo.json", json.dumps(NODESLO).encode())
    assert slo.plan().victims == ()
    assert changes(slo) == {"memoryEvictThresholdPercent": (80, 95)}
    configmap = with_file(case(), "cm.json", json.dumps(CONFIGMAP).encode())
    assert changes(configmap)["enable"] == (True, False)
    assert configmap.plan().features[0].verdict.skipped == "disabled"


def test_single_settings_of_both_kinds() -> None:
    after = with_entries(case(), ["eviction.evictionsPerNamespace=1", "memoryEvictLowerPercent=50"])
    assert changes(after) == {
        "memoryEvictLowerPercent": (None, 50),
        "eviction.evictionsPerNamespace": (None, 1),
    }
    assert [each.candidate.name for each in after.plan().victims] == ["hog"]
    protected = with_entries(case(), ['eviction.protectedNamespaces=["spark"]'])
    assert changes(protected) == {"eviction.protectedNamespaces": ("none", "spark")}
    assert protected.plan().victims == ()


def test_a_setting_laid_over_a_file_keeps_the_rest_of_it() -> None:
    after = with_entries(with_file(case(), "a.yaml", AGENT), ["eviction.coolTime=9s"])
    assert changes(after)["eviction.coolTime"] == ("4s", "9s")
    assert changes(after)["eviction.minAge"] == ("0s", "1h")


def test_settings_of_suppression() -> None:
    after = with_entries(case(), ["suppress.policy=cpuIdle", "suppress.memoryPressure.isOn=true"])
    assert changes(after) == {"suppress.policy": (None, "cpuIdle"), "suppress.memoryPressure.isOn": (False, True)}
    assert after.strategies.suppress.memory_pressure.is_on


def test_gates() -> None:
    after = with_feature_gates(case(), ["MemoryEvict=true"])
    assert case_changes(case(), after) == (Setting("MemoryEvict", False, True),)
    with pytest.raises(ConfigError, match="--feature-gates: 'HamiCoreVGPUMonitor'"):
        with_feature_gates(case(), ["HamiCoreVGPUMonitor=true"])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("eviction.nope=1", r"--set: eviction\.nope: 1: no such field"),
        ("eviction.coolTime=soon", r"--set: eviction\.coolTime: 'soon': must be a duration"),
        ("eviction.coolTime", "--set: 'eviction.coolTime': must be SETTING=VALUE"),
        ("memoryEvictThresholdPercent=[]", r"--set: spec\..*Percent: \[\]: must be an integer"),
        ("guards.podsMaxAge=1s", "--set: 'guards.podsMaxAge': must be a field of"),
    ],
)
def test_a_wrong_setting_names_path_value_and_rule(entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_entries(case(), [entry])


def test_a_wrong_file_names_itself() -> None:
    wrong = json.dumps(NODESLO).replace("95", '"95"').encode()
    with pytest.raises(ConfigError, match=r"slo\.json: spec\..*: '95': must be an integer"):
        with_file(case(), "slo.json", wrong)
    with pytest.raises(ConfigError, match=r"a\.yaml:\d+:\d+: eviction\.minAge: 'x'"):
        with_file(case(), "a.yaml", AGENT.replace(b"1h", b"x"))
    with pytest.raises(ConfigError, match=r"pods\.json: .*must hold a NodeSLO"):
        with_file(case(), "pods.json", b'{"apiVersion": "v1", "kind": "List", "items": []}')


DEAD_MAN = b"""
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
deadMan: {action: count, after: 1s}
"""


def test_the_dead_mans_switch_is_planned_where_it_is_on() -> None:
    assert case().plan().dead_man is None
    found = with_file(case(), "a.yaml", DEAD_MAN).plan().dead_man
    assert found is not None and found.choice.victim is not None
    assert (found.settings.action, found.settings.after_ns) == ("count", NS_PER_S)
    assert (found.choice.victim.candidate.name, found.choice.feature) == ("hog", "BEMemoryEvict")
    assert [each.name for each in found.choice.ranking] == ["hog", "small"]
    killing = with_entries(case(), ["deadMan.action=kill"])
    assert changes(killing) == {"deadMan.action": ("nothing", "kill")}
    assert killing.plan().dead_man is not None


def test_the_dead_mans_switch_is_not_armed_where_no_pod_may_be_evicted() -> None:
    off = with_feature_gates(with_file(case(), "a.yaml", DEAD_MAN), ["BEMemoryEvict=false"])
    found = off.plan().dead_man
    assert found is not None and found.choice.victim is None
    assert "BEMemoryEvict is off" in found.choice.reason
    stale = (ClosedGuard("pods_stale", "the list of pods is too old"),)
    held = replace(with_file(case(), "a.yaml", DEAD_MAN), guards=stale).plan().dead_man
    assert held is not None and (held.choice.victim, held.choice.reason) == (None, "the list of pods is too old")


def test_the_switch_of_a_recorded_round_has_the_guards_and_the_budget_of_then() -> None:
    recorded = replace(case().frame, evictions=tuple(PastEviction(NOW_NS - 1, f"u{n}", "n") for n in range(10)))
    tick = TickFrame(frame=recorded, settings=TickSettings(), guards=GuardFacts(NOW_NS, "file", NOW_NS))
    found = with_file(case_of_tick(tick, "a.frames"), "a.yaml", DEAD_MAN).plan().dead_man
    assert found is not None and found.choice.victim is None
    assert found.choice.reason == "10 evictions in the last minute already"
