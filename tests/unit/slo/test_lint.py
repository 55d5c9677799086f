"""Values of a strategy that apply as koordlet has them, although they cannot be meant so, in sentences."""

from __future__ import annotations

from typing import Any

import pytest

from koordebpf.slo.nodeslo import strategy_doubts
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy

REAL_LIMIT = "evictByRealLimit"
APPLIES = "is in force all the same, as in koordlet"


@pytest.mark.parametrize(
    ("fields", "doubts"),
    [
        ({}, []),
        ({"cpuSuppressThresholdPercent": 65}, []),
        ({"cpuSuppressMinPercent": 66}, []),
        ({"cpuSuppressThresholdPercent": 65, "cpuSuppressMinPercent": 65, "cpuSuppressPolicy": "cfsQuota"}, []),
        (
            {"cpuSuppressThresholdPercent": 65, "cpuSuppressMinPercent": 66},
            [
                "s.cpuSuppressMinPercent: 66: must not be more than cpuSuppressThresholdPercent (65): best-effort pods"
                " are held to it whatever the others use"
            ],
        ),
        ({"memoryEvictThresholdPercent": 170}, [f"s.memoryEvictThresholdPercent: 170: must be 0…100; it {APPLIES}"]),
        (
            {"cpuEvictPolicy": "no"},
            [f"s.cpuEvictPolicy: 'no': must be one of {REAL_LIMIT}, evictByAllocatable; {REAL_LIMIT} {APPLIES}"],
        ),
        (
            {"cpuSuppressPolicy": "cpuIdle"},
            [
                f"s.cpuSuppressPolicy: 'cpuIdle': must be one of cpuset, cfsQuota; cpuset {APPLIES}",
                "s.cpuSuppressPolicy: Koordinator has no cpuIdle: it is suppress.policy of the agents' settings",
            ],
        ),
    ],
)
def test_each_doubt_is_said_with_what_is_in_force(fields: dict[str, Any], doubts: list[str]) -> None:
    assert list(strategy_doubts(ResourceThresholdStrategy(**fields), "s")) == doubts
