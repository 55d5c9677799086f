"""koordlet's `--feature-gates`, as koordlet reads it."""

from __future__ import annotations

import pytest

from koordebpf.configuration.settings import named_gates
from koordebpf.decision.strategies import FEATURE_GATES, OWN_GATES
from koordebpf.errors import ConfigError
from koordebpf.slo import feature_gates
from koordebpf.slo.feature_gates import KOORDLET_GATES

# What Koordinator's chart gives its koordlet.
CHART = "BECPUEvict=true,BEMemoryEvict=true,CgroupReconcile=true,Accelerators=true"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([], {}),
        ([""], {}),
        (["MemoryEvict=true"], {"MemoryEvict": True}),
        ([" MemoryEvict = True , BEMemoryEvict=0,"], {"MemoryEvict": True, "BEMemoryEvict": False}),
        (["MemoryEvict=true", "MemoryEvict=F"], {"MemoryEvict": False}),
    ],
)
def test_names_and_values(given: list[str], named: dict[str, bool]) -> None:
    assert feature_gates.parse_feature_gates(given) == named


def test_a_stage_stands_for_its_gates_that_are_not_named() -> None:
    named = feature_gates.parse_feature_gates(["MemoryEvict=false,AllAlpha=true"])
    assert named == {name: name != "MemoryEvict" for name, default in KOORDLET_GATES.items() if not default}
    assert set(feature_gates.parse_feature_gates(["AllBeta=false"])) == {
        name for name, default in KOORDLET_GATES.items() if default
    }


@pytest.mark.parametrize("given", ["memoryevict=true", "Nothing=true", "MemoryEvict", "MemoryEvict=yes", "=true"])
def test_what_koordlet_refuses(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        feature_gates.parse_feature_gates([given])
    assert (caught.value.path, caught.value.value) == ("--feature-gates", given)


def test_the_charts_gates_are_taken_and_those_without_effect_are_reported() -> None:
    here, idle = named_gates([CHART])
    assert here["BEMemoryEvict"] is True
    assert set(here) | set(idle) == {entry.partition("=")[0] for entry in CHART.split(",")}
    assert set(here) <= set(FEATURE_GATES)


def test_every_gate_here_is_one_of_koordlets_or_our_own_and_off() -> None:
    assert set(FEATURE_GATES) - set(OWN_GATES) <= set(KOORDLET_GATES)
    assert not set(OWN_GATES) & set(KOORDLET_GATES)
    assert not any(OWN_GATES.values())
    assert named_gates(["StallEvict=true"]) == ({"StallEvict": True}, ())


def test_no_stage_of_koordlet_switches_our_own_gates_on() -> None:
    assert not set(OWN_GATES) & set(feature_gates.parse_feature_gates(["AllAlpha=true,AllBeta=true"]))
