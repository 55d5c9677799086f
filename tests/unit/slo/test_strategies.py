from __future__ import annotations

import json

import pytest

from koordebpf.errors import ConfigError
from koordebpf.slo.convert import DEFAULT_STRATEGY
from koordebpf.slo.manager.shapes import THRESHOLD_KEY
from koordebpf.slo.nodeslo import parse_nodeslo, strategy_for
from koordebpf.slo.spec import spec_of_configmap, strategy_of_configmap
from koordebpf.slo.strategies.resource_threshold import (
    ResourceThresholdStrategy,
    memory_evict_lower_percent,
    memory_evict_problem,
)


def _nodeslo(**strategy: object) -> bytes:
    return json.dumps({"spec": {"resourceUsedThresholdWithBE": strategy}}).encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b'{"spec": {}}',
        b'{"spec": null}',
        b'{"spec": {"resourceUsedThresholdWithBE": null}}',
        _nodeslo(enable=None),
    ],
)
def test_an_empty_nodeslo_is_the_defaults(raw):
    assert parse_nodeslo(raw) == DEFAULT_STRATEGY
    assert (DEFAULT_STRATEGY.enable, DEFAULT_STRATEGY.memoryEvictThresholdPercent) == (False, 70)
    assert DEFAULT_STRATEGY.memoryEvictLowerPercent is None


def test_what_is_written_replaces_the_default_and_the_rest_stays():
    strategy = parse_nodeslo(_nodeslo(enable=True, memoryEvictLowerPercent=0, somethingNew={"a": 1}))
    assert (strategy.enable, strategy.memoryEvictLowerPercent, strategy.memoryEvictThresholdPercent) == (True, 0, 70)
    assert strategy.cpuSuppressThresholdPercent == 65


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("enable", "true", "must be true or false"),
        ("enable", 1, "must be true or false"),
        ("memoryEvictThresholdPercent", "85", "must be an integer 0…100"),
        ("memoryEvictThresholdPercent", 85.0, "must be an integer 0…100"),
        ("memoryEvictThresholdPercent", True, "must be an integer 0…100"),
        ("memoryEvictThresholdPercent", 1 << 63, "must be an integer 0…100"),
        ("memoryAllocatableEvictLowerPercent", [], "must be an integer, 0 or more"),
        ("cpuEvictTimeWindowSeconds", "5s", "must be an integer, 1 or more"),
        ("evictEnabledPriorityThreshold", 1 << 31, "must be an integer of 32 bits"),
        ("cpuEvictPolicy", 1, "must be a string"),
    ],
)
def test_a_wrong_type_names_path_value_and_rule(name, value, rule):
    with pytest.raises(ConfigError) as caught:
        parse_nodeslo(_nodeslo(**{name: value}))
    error = caught.value
    assert (error.path, error.value, error.rule) == (f"spec.resourceUsedThresholdWithBE.{name}", value, rule)


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b"", "NodeSLO"),
        (b"[]", "NodeSLO"),
        (b"{", "NodeSLO"),
        (b"\xff", "NodeSLO"),
        (b'{"spec": []}', "spec"),
        (b'{"spec": {"resourceUsedThresholdWithBE": 1}}', "spec.resourceUsedThresholdWithBE"),
    ],
)
def test_a_wrong_shape_names_its_place(raw, path):
    with pytest.raises(ConfigError) as caught:
        parse_nodeslo(raw)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("threshold", "lower", "problem"),
    [
        (None, None, "threshold percent is nil"),
        (-1, None, "threshold percent(-1) should equal or greater than 0"),
        (70, 70, "lower percent(70) should less than threshold percent(70)"),
        (70, 71, "lower percent(71) should less than threshold percent(70)"),
        (70, 69, None),
        (0, None, None),
        (130, None, None),
    ],
)
def test_unusable_thresholds_in_koordinators_words(threshold, lower, problem):
    strategy = ResourceThresholdStrategy(memoryEvictThresholdPercent=threshold, memoryEvictLowerPercent=lower)
    assert memory_evict_problem(strategy) == problem


def test_no_strategy_at_all():
    assert memory_evict_problem(None) == "resourceThresholdStrategy not config"


def test_the_lower_mark_is_two_below_the_threshold_unless_written():
    assert memory_evict_lower_percent(ResourceThresholdStrategy(memoryEvictThresholdPercent=70)) == 68
    written = ResourceThresholdStrategy(memoryEvictThresholdPercent=70, memoryEvictLowerPercent=0)
    assert memory_evict_lower_percent(written) == 0
    assert memory_evict_lower_percent(ResourceThresholdStrategy()) is None


def _configmap(**config: object) -> dict[str, str]:
    return {THRESHOLD_KEY: json.dumps(config)}


def test_the_first_matching_entry_lies_over_the_cluster_which_lies_over_the_defaults():
    data = _configmap(
        clusterStrategy={"enable": True, "memoryEvictLowerPercent": 60},
        nodeStrategies=[
            {"name": "none", "memoryEvictThresholdPercent": 1},
            {"name": "gpu", "nodeSelector": {"matchLabels": {"pool": "gpu"}}, "memoryEvictThresholdPercent": 95},
            {"name": "batch", "nodeSelector": {"matchLabels": {"pool": "batch"}}, "memoryEvictThresholdPercent": 80},
            {"name": "all", "nodeSelector": {}, "memoryEvictThresholdPercent": 90},
        ],
    )
    batch = strategy_of_configmap(data, {"pool": "batch"})
    assert (batch.enable, batch.memoryEvictThresholdPercent, batch.memoryEvictLowerPercent) == (True, 80, 60)
    assert strategy_of_configmap(data, {}).memoryEvictThresholdPercent == 90
    assert strategy_of_configmap(data, {"pool": "gpu"}).cpuSuppressPolicy == "cpuset"


def test_no_entry_matches_and_no_key():
    data = _configmap(clusterStrategy={"enable": True}, nodeStrategies=[{"nodeSelector": {"matchLabels": {"a": "b"}}}])
    assert strategy_of_configmap(data, {}).enable is True
    assert strategy_of_configmap({"colocation-config": "{"}, {}) == DEFAULT_STRATEGY


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ({"key": "pool", "operator": "In", "values": ["batch", "x"]}, True),
        ({"key": "pool", "operator": "In", "values": ["x"]}, False),
        ({"key": "pool", "operator": "In", "values": []}, False),
        ({"key": "absent", "operator": "In", "values": ["x"]}, False),
        ({"key": "pool", "operator": "NotIn", "values": ["x"]}, True),
        ({"key": "pool", "operator": "NotIn", "values": ["batch"]}, False),
        ({"key": "absent", "operator": "NotIn", "values": ["x"]}, True),
        ({"key": "pool", "operator": "Exists"}, True),
        ({"key": "absent", "operator": "Exists"}, False),
        ({"key": "pool", "operator": "Exists", "values": ["batch"]}, False),
        ({"key": "absent", "operator": "DoesNotExist"}, True),
        ({"key": "pool", "operator": "DoesNotExist"}, False),
        ({"key": "pool", "operator": "Gt", "values": ["1"]}, False),
    ],
)
def test_match_expressions(expression, matches):
    data = _configmap(nodeStrategies=[{"nodeSelector": {"matchExpressions": [expression]}, "enable": True}])
    assert strategy_of_configmap(data, {"pool": "batch"}).enable is matches


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"clusterStrategy": []}, ".clusterStrategy"),
        ({"clusterStrategy": {"memoryEvictThresholdPercent": "85"}}, ".clusterStrategy.memoryEvictThresholdPercent"),
        ({"nodeStrategies": {"a": 1}}, ".nodeStrategies"),
    ],
)
def test_a_wrong_configmap_names_its_place(config, path):
    with pytest.raises(ConfigError) as caught:
        strategy_of_configmap(_configmap(**config), {})
    assert caught.value.path == f"{THRESHOLD_KEY}{path}"


@pytest.mark.parametrize(
    ("entries", "path"),
    [
        ([1], "[0]"),
        ([{}, {"enable": "yes"}], "[1].enable"),
        ([{"nodeSelector": {"matchLabels": {"a": 1}}}], "[0].nodeSelector.matchLabels.a"),
        (
            [{"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": "b"}]}}],
            "[0].nodeSelector.matchExpressions[0].values",
        ),
    ],
)
def test_an_entry_that_is_left_out_names_its_place(entries, path):
    (error,) = spec_of_configmap(_configmap(nodeStrategies=entries), {})[2]
    assert error.path == f"{THRESHOLD_KEY}.nodeStrategies{path}"


def test_the_nodeslo_precedes_the_configmap():
    data = _configmap(clusterStrategy={"memoryEvictThresholdPercent": 90})
    assert strategy_for(_nodeslo(memoryEvictThresholdPercent=80), data, None).memoryEvictThresholdPercent == 80
    assert strategy_for(None, data, None).memoryEvictThresholdPercent == 90
    assert strategy_for(None, None, None) is None


@pytest.mark.parametrize("name", ["evictEnabledPriorityThreshold", "allocatableEvictPriorityThreshold"])
def test_a_priority_is_a_number_of_32_bits(name):
    for value in (-(1 << 31), (1 << 31) - 1):
        assert getattr(parse_nodeslo(_nodeslo(**{name: value})), name) == value
    for value in (-(1 << 31) - 1, 1 << 31):
        with pytest.raises(ConfigError, match=f"{name}.*32 bits"):
            parse_nodeslo(_nodeslo(**{name: value}))


def test_a_number_is_of_64_bits():
    with pytest.raises(ConfigError, match="cpuEvictTimeWindowSeconds"):
        parse_nodeslo(_nodeslo(cpuEvictTimeWindowSeconds=1 << 63))
    assert parse_nodeslo(_nodeslo(cpuEvictTimeWindowSeconds=(1 << 63) - 1)).cpuEvictTimeWindowSeconds == (1 << 63) - 1
