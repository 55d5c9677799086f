"""spec.metricCollectPolicy of a NodeMetric: koordlet's defaults and least values, and what cannot be used."""

from __future__ import annotations

from typing import Any

import pytest

from koordebpf.errors import ConfigError
from koordebpf.jobs.node_metric.render import CollectPolicy, collect_policy
from koordebpf.slo.go_duration import duration_ns, go_duration
from koordebpf.units import NS_PER_MS, NS_PER_S

MINUTE_NS = 60 * NS_PER_S


@pytest.mark.parametrize("spec", [None, {}, {"metricCollectPolicy": None}, {"metricCollectPolicy": {}}, {"other": 1}])
def test_what_is_not_written_is_as_koordlet_has_it(spec: Any) -> None:
    assert collect_policy(spec) == CollectPolicy(
        aggregate_ns=5 * MINUTE_NS,
        interval_ns=MINUTE_NS,
        durations_ns=(5 * MINUTE_NS, 10 * MINUTE_NS, 30 * MINUTE_NS),
        memory="usageWithoutPageCache",
    )


def test_each_field_is_read() -> None:
    policy = {
        "aggregateDurationSeconds": 120,
        "reportIntervalSeconds": 45,
        "nodeAggregatePolicy": {"durations": ["1m", "1h0m0s", "1m0s"]},
        "nodeMemoryCollectPolicy": "usageWithPageCache",
    }
    assert collect_policy({"metricCollectPolicy": policy}) == CollectPolicy(
        120 * NS_PER_S, 45 * NS_PER_S, (MINUTE_NS, 60 * MINUTE_NS), "usageWithPageCache"
    )


def test_what_is_too_short_counts_as_koordlets_least() -> None:
    policy = collect_policy({"metricCollectPolicy": {"aggregateDurationSeconds": 1, "reportIntervalSeconds": 29}})
    assert (policy.aggregate_ns, policy.interval_ns) == (60 * NS_PER_S, 30 * NS_PER_S)


@pytest.mark.parametrize("durations", [None, []])
def test_no_durations_are_the_defaults(durations: Any) -> None:
    policy = {"nodeAggregatePolicy": {"durations": durations}}
    assert collect_policy({"metricCollectPolicy": policy}).durations_ns == CollectPolicy().durations_ns


@pytest.mark.parametrize(
    ("policy", "path"),
    [
        ({"aggregateDurationSeconds": 0}, "spec.metricCollectPolicy.aggregateDurationSeconds"),
        ({"reportIntervalSeconds": 0}, "spec.metricCollectPolicy.reportIntervalSeconds"),
        ({"reportIntervalSeconds": -1}, "spec.metricCollectPolicy.reportIntervalSeconds"),
        ({"reportIntervalSeconds": 10**12}, "spec.metricCollectPolicy.reportIntervalSeconds"),
        ({"reportIntervalSeconds": "60"}, "spec.metricCollectPolicy.reportIntervalSeconds"),
        ({"reportIntervalSeconds": True}, "spec.metricCollectPolicy.reportIntervalSeconds"),
        ({"reportIntervalSeconds": 60.5}, "spec.metricCollectPolicy.reportIntervalSeconds"),
        ({"nodeMemoryCollectPolicy": "usage"}, "spec.metricCollectPolicy.nodeMemoryCollectPolicy"),
        ({"nodeMemoryCollectPolicy": ["usage"]}, "spec.metricCollectPolicy.nodeMemoryCollectPolicy"),
        ({"nodeAggregatePolicy": 5}, "spec.metricCollectPolicy.nodeAggregatePolicy"),
        ({"nodeAggregatePolicy": {"durations": "5m"}}, "spec.metricCollectPolicy.nodeAggregatePolicy.durations"),
        ({"nodeAggregatePolicy": {"durations": ["1m"] * 17}}, "spec.metricCollectPolicy.nodeAggregatePolicy.durations"),
        (
            {"nodeAggregatePolicy": {"durations": ["5m", "0s"]}},
            "spec.metricCollectPolicy.nodeAggregatePolicy.durations[1]",
        ),
        ({"nodeAggregatePolicy": {"durations": [300]}}, "spec.metricCollectPolicy.nodeAggregatePolicy.durations[0]"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_path(policy: Any, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        collect_policy({"metricCollectPolicy": policy})
    assert caught.value.path == path


@pytest.mark.parametrize("spec", [[], "spec", {"metricCollectPolicy": []}])
def test_what_is_no_object_is_named(spec: Any) -> None:
    with pytest.raises(ConfigError, match="must be an object"):
        collect_policy(spec)


# Written by Go 1.22: time.ParseDuration(written).String().
@pytest.mark.parametrize(
    ("written", "ns", "text"),
    [
        ("5m", 5 * MINUTE_NS, "5m0s"),
        ("1h30m", 90 * MINUTE_NS, "1h30m0s"),
        ("36h", 36 * 60 * MINUTE_NS, "36h0m0s"),
        ("90s", 90 * NS_PER_S, "1m30s"),
        ("1.5s", 1500 * NS_PER_MS, "1.5s"),
        ("1m0.25s", MINUTE_NS + 250 * NS_PER_MS, "1m0.25s"),
        (".5h", 30 * MINUTE_NS, "30m0s"),
        ("1500us", 1_500_000, "1.5ms"),
        ("7ns", 7, "7ns"),
        ("0", 0, "0s"),
    ],
)
def test_durations_are_read_and_written_as_go_does(written: str, ns: int, text: str) -> None:
    assert duration_ns(written, "d") == ns
    assert go_duration(ns) == text


@pytest.mark.parametrize(
    "written", ["", "5", "-5m", "5 m", "m", "5d", "1h5", "9" * 39 + "h", "1" * 50, 5, None, ["5m"]]
)
def test_what_is_no_duration_is_named(written: Any) -> None:
    with pytest.raises(ConfigError, match="must be a duration"):
        duration_ns(written, "d")
