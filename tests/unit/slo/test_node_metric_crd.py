"""The CRD of NodeMetric takes what the agent reads of its policy, and refuses what that would refuse."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from koordebpf.errors import ConfigError
from koordebpf.jobs.node_metric.render import MemoryPolicy, collect_policy
from koordebpf.slo.manager.crd import node_metric_crd


def policy_schema() -> dict[str, Any]:
    (version,) = node_metric_crd()["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    found: dict[str, Any] = spec["properties"]["metricCollectPolicy"]["properties"]
    return found


@pytest.mark.parametrize("name", ["aggregateDurationSeconds", "reportIntervalSeconds"])
def test_its_least_is_what_the_agent_takes(name: str) -> None:
    least = policy_schema()[name]["minimum"]
    collect_policy({"metricCollectPolicy": {name: least}})
    with pytest.raises(ConfigError, match=name):
        collect_policy({"metricCollectPolicy": {name: least - 1}})


def test_memory_policies_are_those_that_are_known() -> None:
    assert set(policy_schema()["nodeMemoryCollectPolicy"]["enum"]) == set(get_args(MemoryPolicy))


def test_whatever_a_status_holds_is_kept_and_its_update_time_is_shown() -> None:
    (version,) = node_metric_crd()["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert status["x-kubernetes-preserve-unknown-fields"] is True
    assert status["properties"]["updateTime"] == {"type": "string", "format": "date-time"}
    assert {each["jsonPath"] for each in version["additionalPrinterColumns"]} >= {".status.updateTime"}
    assert version["subresources"] == {"status": {}}
