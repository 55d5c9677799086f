"""The stall net's settings in the agent's file: what they may be, and that compat: strict keeps the net off."""

from __future__ import annotations

import json

import pytest

from koordebpf.configuration.checked import agent_config, check_config
from koordebpf.errors import ConfigError
from koordebpf.policy.evict.settings import StallSettings

HEAD = {"apiVersion": "koordebpf.io/v1alpha1", "kind": "AgentConfiguration"}


def read(**sections: object) -> dict[str, object]:
    return check_config("agent.yaml", json.dumps(HEAD | sections).encode())


def test_it_is_off_and_as_systemd_oomd_unless_configured() -> None:
    config = agent_config({})
    assert config.feature_gates["StallEvict"] is False
    assert config.eviction.stall == StallSettings(full_percent=60, seconds=30)
    given = read(featureGates={"StallEvict": True}, eviction={"stall": {"fullPercent": 40, "seconds": 10}})
    config = agent_config(given)
    assert config.feature_gates["StallEvict"] is True
    assert config.eviction.stall == StallSettings(full_percent=40, seconds=10)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("fullPercent", 0, ">= 1"),
        ("fullPercent", 100, "<= 99"),
        ("seconds", 0, ">= 1"),
        ("seconds", 121, "<= 120"),
        ("seconds", "30s", "integer"),
    ],
)
def test_what_it_cannot_be_is_refused_with_its_place_and_the_rule(name: str, value: object, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(eviction={"stall": {name: value}})
    assert caught.value.path.endswith(f": eviction.stall.{name}")
    assert caught.value.value == value
    assert rule in caught.value.rule


def test_compat_strict_keeps_it_off() -> None:
    assert agent_config({"compat": "strict"}).feature_gates["StallEvict"] is False
    with pytest.raises(ConfigError) as caught:
        read(compat="strict", featureGates={"StallEvict": True})
    assert caught.value.path.endswith(": featureGates.StallEvict")
    assert caught.value.rule == "must be false with compat: strict: Koordinator has no such feature"
