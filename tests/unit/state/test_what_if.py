"""The same moment under other settings."""

from __future__ import annotations

import msgspec
import pytest

from koordebpf.errors import ConfigError
from koordebpf.state.build import strategy_of_frame
from koordebpf.state.view import Frame
from koordebpf.state.what_if import (
    Setting,
    changed_settings,
    parse_field,
    with_configmap,
    with_fields,
    with_gates,
    with_nodeslo,
)
from tests.support.values.builders import frame, pod

CLUSTER = '{"clusterStrategy": {"enable": true, "memoryEvictThresholdPercent": 60, "memoryEvictLowerPercent": 50}}'


def recorded() -> Frame:
    return frame([pod("hog", anon=300)], used=900)


def threshold(of: Frame) -> int | None:
    strategy = strategy_of_frame(of)
    assert strategy is not None
    return strategy.memoryEvictThresholdPercent


def test_a_field_changes_and_the_others_stay() -> None:
    other = with_fields(recorded(), {"memoryEvictThresholdPercent": 95, "memoryEvictLowerPercent": 90})
    assert changed_settings(recorded(), other) == (
        Setting("memoryEvictThresholdPercent", 80, 95),
        Setting("memoryEvictLowerPercent", None, 90),
    )
    assert recorded() == frame([pod("hog", anon=300)], used=900)


def test_null_leaves_koordinators_default() -> None:
    assert threshold(with_fields(recorded(), {"memoryEvictThresholdPercent": None})) == 70


def test_a_field_is_laid_over_what_the_configmap_says() -> None:
    by_configmap = with_configmap(recorded(), {"resource-threshold-config": CLUSTER})
    assert threshold(by_configmap) == 60
    other = with_fields(by_configmap, {"memoryEvictThresholdPercent": 65})
    assert changed_settings(by_configmap, other) == (Setting("memoryEvictThresholdPercent", 60, 65),)


def test_another_nodeslo_takes_the_place_of_the_configmap() -> None:
    by_configmap = with_configmap(recorded(), {"resource-threshold-config": CLUSTER})
    assert threshold(with_nodeslo(by_configmap, msgspec.Raw(b'{"spec": {}}'))) == 70


def test_a_gate_that_is_not_named_stays_and_one_that_is_absent_is_off() -> None:
    other = with_gates(recorded(), {"MemoryEvict": True, "MemoryAllocatableEvict": False})
    assert other.featureGates["BEMemoryEvict"] is True
    assert changed_settings(recorded(), other) == (Setting("MemoryEvict", False, True),)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("resourceUsedThresholdWithBE.memoryEvictThresholdPercent=85", ("memoryEvictThresholdPercent", 85)),
        ("spec.resourceUsedThresholdWithBE.enable=false", ("enable", False)),
        ("memoryEvictLowerPercent=null", ("memoryEvictLowerPercent", None)),
        ("cpuSuppressPolicy=cpuset", ("cpuSuppressPolicy", "cpuset")),
    ],
)
def test_a_field_is_written_as_in_the_object(entry: str, value: tuple[str, object]) -> None:
    assert parse_field(entry) == value


@pytest.mark.parametrize(
    "entry", ["memoryEvictThreshold=1", "resourceQOSStrategy.enable=true", "enable", "=3", "metadata.name=x"]
)
def test_what_is_no_field_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        parse_field(entry)


def test_a_wrong_type_names_path_value_and_rule() -> None:
    with pytest.raises(ConfigError, match=r"spec\.resource.*memoryEvictThresholdPercent: 'high': must be an integer"):
        with_fields(recorded(), {"memoryEvictThresholdPercent": "high"})
    with pytest.raises(ConfigError, match="must be an object"):
        with_nodeslo(recorded(), msgspec.Raw(b'{"spec": 3}'))
    with pytest.raises(ConfigError, match="must be JSON"):
        with_configmap(recorded(), {"resource-threshold-config": "{"})
