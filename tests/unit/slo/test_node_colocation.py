"""The colocation strategy of a node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordebpf.slo.manager.node_colocation import (
    DEFAULT_COLOCATION,
    STRATEGY_ANNOTATION,
    Resolved,
    effective_colocation,
    node_colocation,
)


def resolved(config: object = None, labels: dict[str, str] | None = None, annotation: object = None) -> Resolved:
    written = annotation if isinstance(annotation, str) else json.dumps(annotation)
    annotations = {} if annotation is None else {STRATEGY_ANNOTATION: written}
    text = None if config is None else json.dumps(config)
    return node_colocation(effective_colocation(text), labels or {}, annotations)


def test_without_the_key_colocation_is_off() -> None:
    assert resolved() == Resolved(DEFAULT_COLOCATION)
    assert not resolved().strategy.enable


def test_each_lies_over_the_one_before() -> None:
    config = {
        "enable": True,
        "cpuReclaimThresholdPercent": 50,
        "memoryReclaimThresholdPercent": 51,
        "degradeTimeMinutes": 20,
        "nodeConfigs": [
            {"nodeSelector": {"matchLabels": {"pool": "b"}}, "memoryReclaimThresholdPercent": 1},
            {"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}, "memoryReclaimThresholdPercent": 70},
            {"nodeSelector": {"matchLabels": {"pool": "a"}}, "memoryReclaimThresholdPercent": 2},
        ],
    }
    labels = {"pool": "a", "node.koordinator.sh/cpu-reclaim-ratio": "0.8"}
    found = resolved(config, labels, {"degradeTimeMinutes": 7, "cpuReclaimThresholdPercent": 10})
    strategy = found.strategy
    assert (strategy.cpuReclaimThresholdPercent, strategy.memoryReclaimThresholdPercent) == (80, 70)
    assert (strategy.degradeTimeMinutes, strategy.enable, strategy.midCPUThresholdPercent) == (7, True, 100)
    assert found.problems == ()
    assert found.origins == {
        "enable": "colocation-config.enable",
        "cpuReclaimThresholdPercent": "metadata.labels[node.koordinator.sh/cpu-reclaim-ratio]",
        "memoryReclaimThresholdPercent": "colocation-config.nodeConfigs",
        "degradeTimeMinutes": f"metadata.annotations[{STRATEGY_ANNOTATION}]",
    }


def test_names_are_matched_as_go_matches_them() -> None:
    assert resolved({"Enable": True}).strategy.enable


@pytest.mark.parametrize("value", ["x", "", "-0.1", "nan", "inf", "1e300"])
def test_an_illegal_ratio_is_left_out_and_named(value: str) -> None:
    found = resolved({"enable": True}, {"node.koordinator.sh/memory-reclaim-ratio": value})
    assert found.strategy.memoryReclaimThresholdPercent == 65
    assert len(found.problems) == 1
    assert "memory-reclaim-ratio" in found.problems[0]


def test_ratios_are_cut_to_whole_percents() -> None:
    labels = {
        "node.koordinator.sh/cpu-reclaim-ratio": "0.29",
        "node.koordinator.sh/mid-static-cpu-reserved-ratio": "1.5",
    }
    strategy = resolved({"enable": True}, labels).strategy
    assert (strategy.cpuReclaimThresholdPercent, strategy.midStaticCPUReservedPercent) == (28, 150)


@pytest.mark.parametrize(
    "annotation",
    [{"cpuReclaimThresholdPercent": "10"}, {"degradeTimeMinutes": 0}, {"resourceDiffThreshold": 2}],
)
def test_an_unusable_annotation_is_left_out_and_named_but_for_what_it_switches_off(annotation: dict[str, Any]) -> None:
    found = resolved({"enable": True}, {}, {"cpuReclaimThresholdPercent": 10, **annotation})
    assert found.strategy == resolved({"enable": True}).strategy
    for name in ("enable", "Enable"):
        assert not resolved({"enable": True}, {}, {name: False, **annotation}).strategy.enable
    assert any(STRATEGY_ANNOTATION in problem for problem in found.problems)


@pytest.mark.parametrize(
    "annotation", ["{", "[]", '"x"', '{"enable":false,}', '{"enable":"false"}', '{"ENABLE":0}', "\ud800"]
)
@pytest.mark.parametrize("is_on", [True, False])
def test_an_annotation_whose_switch_cannot_be_read_leaves_the_node_as_it_was(annotation: str, is_on: bool) -> None:
    found = resolved({"enable": is_on}, {}, annotation)
    assert (found.strategy.enable, found.is_held) == (False, True)
    assert found.problems[0].startswith(f"metadata.annotations[{STRATEGY_ANNOTATION}]")
    assert found.problems[0].endswith("the Node keeps what it has")


def test_an_annotations_names_match_without_regard_to_case() -> None:
    found = resolved({"enable": True}, {}, {"ENABLE": False, "cpuReclaimthresholdpercent": 7})
    assert (found.strategy.enable, found.strategy.cpuReclaimThresholdPercent) == (False, 7)


@pytest.mark.parametrize("percent", [2**63, 99999999999999999999999])
def test_a_number_of_more_than_64_bits_is_out_of_range(percent: int) -> None:
    config = effective_colocation(json.dumps({"enable": True, "cpuReclaimThresholdPercent": percent}))
    assert [error.path for error in config.errors] == ["colocation-config.cpuReclaimThresholdPercent"]


def test_the_node_of_an_unusable_entry_keeps_what_it_has_and_one_that_is_off_is_off() -> None:
    entry = {"nodeSelector": {"matchLabels": {"pool": "a"}}, "degradeTimeMinutes": -1}
    config = {"enable": True, "nodeConfigs": [entry]}
    found = resolved(config, {"pool": "a"})
    assert found.is_held
    assert found.problems == (
        "colocation-config.nodeConfigs[0].degradeTimeMinutes: -1: must be an integer >= 1; the Node keeps what it has",
    )
    assert resolved(config, {"pool": "b"}).problems == ()
    off = resolved({"enable": True, "nodeConfigs": [{**entry, "enable": False}]}, {"pool": "a"})
    assert (off.is_held, off.strategy.enable) == (False, False)
    assert off.problems[0].endswith("colocation is off for the Node")


def test_the_last_good_entry_stays_in_force() -> None:
    entry = {"nodeSelector": {"matchLabels": {"pool": "a"}}, "degradeTimeMinutes": 7}
    good = effective_colocation(json.dumps({"enable": True, "nodeConfigs": [entry]}))
    bad = {"enable": True, "nodeConfigs": [{**entry, "degradeTimeMinutes": 0}], "midUnallocatedPercent": 5}
    found = node_colocation(effective_colocation(json.dumps(bad), good), {"pool": "a"}).strategy
    assert (found.enable, found.degradeTimeMinutes, found.midUnallocatedPercent) == (True, 7, 5)


def test_an_unusable_cluster_strategy_leaves_every_node_as_it_is() -> None:
    config = effective_colocation('{"enable": true, "midCPUThresholdPercent": 101}')
    assert [error.path for error in config.errors] == ["colocation-config.midCPUThresholdPercent"]
    assert node_colocation(config, {}).is_held


def test_a_policy_that_is_none_counts_as_usage_and_is_named() -> None:
    found = resolved({"enable": True, "cpuCalculatePolicy": "request"})
    assert "cpuCalculatePolicy" in found.problems[0]
