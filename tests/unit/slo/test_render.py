"""The ConfigMap to a node's NodeSLO spec, and what is wrong with a ConfigMap."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordebpf.errors import ConfigError
from koordebpf.slo.manager.effective import effective_keys, render_spec
from koordebpf.slo.manager.render import STRATEGY_KEYS
from koordebpf.slo.manager.shapes import unknown_in_config
from koordebpf.slo.manager.webhook import check_configmap
from koordebpf.slo.spec import parse_spec

THRESHOLD = "resource-threshold-config"


def config(cluster: dict[str, Any] | None = None, *nodes: dict[str, Any]) -> str:
    return json.dumps({"clusterStrategy": cluster or {}, "nodeStrategies": list(nodes)})


def for_pool(pool: str, **values: Any) -> dict[str, Any]:
    return {"name": pool, "nodeSelector": {"matchLabels": {"pool": pool}}, **values}


def test_without_keys_a_node_gets_the_defaults() -> None:
    assert render_spec({}, {}) == {
        "resourceUsedThresholdWithBE": {
            "enable": False,
            "cpuSuppressThresholdPercent": 65,
            "cpuSuppressPolicy": "cpuset",
            "memoryEvictThresholdPercent": 70,
            "cpuEvictPolicy": "evictByRealLimit",
        },
        "resourceQOSStrategy": {},
        "cpuBurstStrategy": {
            "policy": "none",
            "cpuBurstPercent": 1000,
            "cfsQuotaBurstPercent": 300,
            "cfsQuotaBurstPeriodSeconds": -1,
            "sharePoolThresholdPercent": 50,
        },
        "systemStrategy": {"totalNetworkBandwidth": "0"},
    }


def test_defaults_cluster_and_the_first_matching_entry_lie_over_one_another() -> None:
    data = {
        THRESHOLD: config(
            {"enable": True, "memoryEvictThresholdPercent": 80},
            for_pool("a", memoryEvictThresholdPercent=90),
            {"nodeSelector": {}, "memoryEvictThresholdPercent": 60},
        )
    }
    for labels, percent in (({"pool": "a"}, 90), ({"pool": "b"}, 60)):
        threshold = render_spec(data, labels)["resourceUsedThresholdWithBE"]
        assert (threshold["enable"], threshold["memoryEvictThresholdPercent"]) == (True, percent)
        assert threshold["cpuSuppressThresholdPercent"] == 65


def test_nested_objects_merge_and_null_changes_nothing() -> None:
    cluster = {"beClass": {"memoryQOS": {"enable": True, "wmarkRatio": 80}}}
    node = for_pool("a", beClass={"memoryQOS": {"wmarkRatio": None, "lowLimitPercent": 10}})
    spec = render_spec({"resource-qos-config": config(cluster, node)}, {"pool": "a"})
    memory = {"enable": True, "wmarkRatio": 80, "lowLimitPercent": 10}
    assert spec["resourceQOSStrategy"] == {"beClass": {"memoryQOS": memory}}


def test_host_applications_are_replaced_not_merged() -> None:
    data = {
        "host-application-config": json.dumps(
            {
                "applications": [{"name": "yarn", "qos": "BE"}],
                "nodeConfigs": [{"nodeSelector": {"matchLabels": {"pool": "a"}}, "applications": [{"name": "db"}]}],
            }
        )
    }
    assert render_spec(data, {"pool": "a"})["hostApplications"] == [{"name": "db"}]
    assert render_spec(data, {})["hostApplications"] == [{"name": "yarn", "qos": "BE"}]


def test_a_node_may_have_its_own_bandwidth() -> None:
    spec = render_spec({}, {}, {"node.koordinator.sh/network-bandwidth": "10G"})
    assert spec["systemStrategy"]["totalNetworkBandwidth"] == "10G"


def test_a_node_strategy_without_bandwidth_keeps_the_clusters() -> None:
    data = {"system-config": config({"totalNetworkBandwidth": "10G"}, for_pool("a", watermarkScaleFactor=150))}
    assert render_spec(data, {"pool": "a"})["systemStrategy"] == {
        "totalNetworkBandwidth": "10G",
        "watermarkScaleFactor": 150,
    }


def test_what_is_rendered_is_what_a_node_reads() -> None:
    data = {
        THRESHOLD: config({"enable": True, "memoryEvictLowerPercent": 60}),
        "cpu-burst-config": config({"policy": "auto"}),
    }
    raw = json.dumps({"spec": render_spec(data, {})}).encode()
    spec, problems = parse_spec(raw)
    assert not problems
    assert spec.resourceUsedThresholdWithBE.memoryEvictLowerPercent == 60
    assert spec.cpuBurstStrategy.policy == "auto"


@pytest.mark.parametrize("key", STRATEGY_KEYS)
def test_an_entry_for_other_nodes_is_checked_too(key: str) -> None:
    (entry,) = effective_keys({key: json.dumps({"nodeStrategies": [{"nodeSelector": []}]})})[key].entries
    (left_out,) = entry.errors
    assert left_out.path == f"{key}.nodeStrategies[0].nodeSelector"
    with pytest.raises(ConfigError, match="must be JSON"):
        render_spec({key: "{"}, {})


def problems(data: dict[str, str], **arguments: Any) -> list[tuple[str, str]]:
    return [(problem.reason, str(problem)) for problem in check_configmap(data, **arguments)]


def test_a_good_configmap_has_no_problems() -> None:
    data = {
        THRESHOLD: config(
            {"enable": True, "memoryEvictThresholdPercent": 80, "memoryEvictLowerPercent": 75}, for_pool("a")
        ),
        "cpu-burst-config": config({"policy": "auto"}, for_pool("a", policy="none"), for_pool("b")),
        "colocation-config": "{}",
    }
    assert problems(data, nodes={"n1": {"pool": "a"}}) == []


@pytest.mark.parametrize(
    ("strategy", "path_and_rule"),
    [
        ({"memoryEvictThresholdPercent": 101}, ("memoryEvictThresholdPercent", "must be 0…100")),
        ({"cpuEvictTimeWindowSeconds": 0}, ("cpuEvictTimeWindowSeconds", "must be 1 or more")),
        ({"allocatableEvictPriorityThreshold": 8000}, ("allocatableEvictPriorityThreshold", "must be 0…7999")),
        (
            {"memoryEvictThresholdPercent": 80, "memoryEvictLowerPercent": 80},
            ("memoryEvictThresholdPercent", "must be greater than memoryEvictLowerPercent (80)"),
        ),
        ({"memoryEvictLowerPercent": 75}, ("memoryEvictThresholdPercent", "(75)")),  # the default is 70
        ({"cpuSuppressPolicy": "none"}, ("cpuSuppressPolicy", "must be one of cpuset, cfsQuota")),
        ({"enable": "yes"}, ("enable", "must be true or false")),
    ],
)
def test_ranges_pairs_and_words(strategy: dict[str, Any], path_and_rule: tuple[str, str]) -> None:
    for data, path in (
        ({THRESHOLD: config(strategy)}, "clusterStrategy"),
        ({THRESHOLD: config({}, for_pool("a", **strategy))}, "nodeStrategies[0]"),
    ):
        ((reason, sentence),) = problems(data)
        assert reason == "ConfigParamInvalid"
        assert sentence.startswith(f"{THRESHOLD}.{path}.{path_and_rule[0]}")
        assert sentence.endswith(path_and_rule[1])


def network(**classes: dict[str, Any]) -> dict[str, Any]:
    return {f"{name}Class": {"networkQOS": values} for name, values in classes.items()}


@pytest.mark.parametrize(
    ("strategy", "place", "rule"),
    [
        (network(be={"ingressLimit": 101}), ".beClass.networkQOS.ingressLimit: 101", "must be an integer <= 100"),
        (network(ls={"egressLimit": "50 M"}), ".lsClass.networkQOS.egressLimit: '50 M'", "such as 500m, 2Gi or 1e9"),
        (
            network(ls={"ingressRequest": 60}, be={"ingressRequest": 41}),
            ": '60 + 41'",
            "must be 100 % or less together",
        ),
        (
            network(ls={"egressRequest": "700M"}, be={"egressRequest": "400M"}),
            ": '700M + 400M'",
            "egressRequest must be the totalNetworkBandwidth of 1G or less together",
        ),
        (
            network(ls={"egressRequest": 20}, be={"ingressRequest": "1M"}),
            ": '20, 1M'",
            "must all be percents or all be quantities: "
            "lsClass.networkQOS.egressRequest, beClass.networkQOS.ingressRequest",
        ),
    ],
)
def test_bandwidths_of_classes(strategy: dict[str, Any], place: str, rule: str) -> None:
    system = {"system-config": config({"totalNetworkBandwidth": "1G"})}
    for text, path in (
        (config(strategy), "clusterStrategy"),
        (config({}, for_pool("a", **strategy)), "nodeStrategies[0]"),
    ):
        ((reason, sentence),) = problems(system | {"resource-qos-config": text})
        assert reason == "ConfigParamInvalid"
        assert sentence.startswith(f"resource-qos-config.{path}{place}")
        assert sentence.endswith(rule)


def test_bandwidths_are_compared_with_those_of_the_same_nodes_where_they_are_known() -> None:
    # The webhook refuses any quantity above 100 and, without a total, any percent above 0.
    promised = network(lsr={"ingressRequest": "4G"}, ls={"ingressRequest": "4G"}, be={"ingressLimit": 100})
    half = network(lsr={"egressRequest": 50}, ls={"egressRequest": 50}, be={"egressRequest": 0})
    for strategy in (promised, half):
        assert problems({"resource-qos-config": config(strategy)}) == []
    qos = config({}, for_pool("a", **promised), for_pool("b", **promised))
    system = config({"totalNetworkBandwidth": "1G"}, for_pool("a", totalNetworkBandwidth="8G"))
    ((_, sentence),) = problems({"resource-qos-config": qos, "system-config": system})
    assert sentence.startswith("resource-qos-config.nodeStrategies[1]: '4G + 4G': ingressRequest must be the total")


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("metricReportIntervalSeconds", 0, "must be an integer >= 1"),
        ("cpuReclaimThresholdPercent", -1, "must be an integer >= 0"),
        ("midUnallocatedPercent", 101, "must be an integer <= 100"),
        ("resourceDiffThreshold", 0, "must be a number > 0.0"),
        ("resourceDiffThreshold", 1.5, "must be a number <= 1.0"),
        ("enable", "yes", "must be true or false"),
    ],
)
def test_ranges_of_colocation(field: str, value: Any, rule: str) -> None:
    key, pool = "colocation-config", {"matchLabels": {"pool": "a"}}
    for config_, path in (
        ({field: value}, key),
        ({"nodeConfigs": [{"nodeSelector": pool, field: value}]}, f"{key}.nodeConfigs[0]"),
    ):
        ((reason, sentence),) = problems({key: json.dumps(config_)})
        assert (reason, sentence) == ("ConfigParamInvalid", f"{path}.{field}: {value!r}: {rule}")
    above = {"cpuReclaimThresholdPercent": 130, "resourceDiffThreshold": 1, "midStaticCPUReservedPercent": 0}
    assert problems({key: json.dumps({"enable": True, **above, "cpuCalculatePolicy": "usage"})}) == []


def test_a_lower_mark_that_a_node_inherits_may_spoil_its_threshold() -> None:
    cluster = {"memoryEvictThresholdPercent": 80, "memoryEvictLowerPercent": 75}
    ((_, sentence),) = problems({THRESHOLD: config(cluster, for_pool("a", memoryEvictThresholdPercent=70))})
    assert "nodeStrategies[0].memoryEvictThresholdPercent: 70" in sentence


def test_a_lone_threshold_is_refused_only_where_the_webhook_is_meant() -> None:
    data = {THRESHOLD: config({"memoryEvictThresholdPercent": 80})}
    assert problems(data) == []
    ((_, sentence),) = problems(data, strict=True)
    assert sentence.endswith("must not stand without memoryEvictLowerPercent: the webhook refuses it")


def test_profiles_must_not_overlap() -> None:
    by_zone = {"name": "zone", "nodeSelector": {"matchLabels": {"zone": "1"}}}
    both = {
        "name": "both",
        "nodeSelector": {
            "matchLabels": {"zone": "1"},
            "matchExpressions": [{"key": "pool", "operator": "In", "values": ["a", "b"]}],
        },
    }
    found = problems({"cpu-burst-config": config({}, by_zone, both)})
    assert [reason for reason, _ in found] == ["NodeStrategiesOverlap"]
    assert "zone=1" in found[0][1]
    assert "both zone and both" in found[0][1]


def test_a_node_that_two_profiles_select_is_named() -> None:
    by_zone = {"name": "zone", "nodeSelector": {"matchLabels": {"zone": "1"}}}
    data = {"cpu-burst-config": config({}, by_zone, for_pool("a"))}
    assert problems(data) == []  # no selector asks for both labels
    found = problems(data, nodes={"n1": {"pool": "a"}, "n2": {"pool": "a", "zone": "1"}})
    assert [(reason, "n2" in sentence) for reason, sentence in found] == [("ExistNodeConfict", True)]


@pytest.mark.parametrize("selector", [None, {}, {"matchLabels": {}}])
def test_a_profile_needs_a_selector(selector: Any) -> None:
    ((_, sentence),) = problems({"cpu-burst-config": config({}, {"nodeSelector": selector})})
    assert sentence.endswith("must not be empty")


def test_text_that_is_no_json_and_unknown_keys() -> None:
    assert [reason for reason, _ in problems({THRESHOLD: "{", "cpu-burst-confg": "{}"})] == [
        "ParseConfigFail",
        "ConfigParamInvalid",
    ]


def test_fields_that_nothing_reads_are_named_with_the_nearest_one() -> None:
    typo = {THRESHOLD: json.dumps({"clusterStrategy": {"memoryEvictTresholdPercent": 80}, "clusterStrateg": {}})}
    first, second = unknown_in_config(typo)
    assert (first.path, first.near) == (
        f"{THRESHOLD}.clusterStrategy.memoryEvictTresholdPercent",
        "memoryEvictThresholdPercent",
    )
    assert (second.path, second.near) == (f"{THRESHOLD}.clusterStrateg", "clusterStrategy")
    assert problems(typo) == []
    assert [reason for reason, _ in problems(typo, strict=True)] == ["ConfigParamInvalid"] * 2
    qos = {"resource-qos-config": config({"beClass": {"memoryQOS": {"wmarkRatios": 1, "oomKillGroup": 1}}})}
    (field,) = unknown_in_config(qos)
    assert str(field) == (
        "resource-qos-config.clusterStrategy.beClass.memoryQOS.wmarkRatios: no such field, it has no effect;"
        " did you mean wmarkRatio?"
    )
    assert unknown_in_config({THRESHOLD: config({"CPUEvictTimeWindowSeconds": 60}), "other": "{", "x": "{}"}) == ()


def test_an_unusable_entry_does_not_hide_what_is_wrong_elsewhere() -> None:
    data = {THRESHOLD: config({}, for_pool("a", enable="yes"), for_pool("b", memoryEvictThresholdPercent=180))}
    places = [path for _, path in problems(data)]
    assert [place.partition(":")[0] for place in places] == [
        f"{THRESHOLD}.nodeStrategies[0].enable",
        f"{THRESHOLD}.nodeStrategies[1].memoryEvictThresholdPercent",
    ]
