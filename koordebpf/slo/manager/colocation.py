"""`colocation-config`: what Koordinator's webhook asks of it, and the strategy of a node that comes of it.

By it batch and mid resources are computed (policy/batch), and NodeMetrics are asked for.

Source: koordinator apis/configuration/slo_controller_config.go, pkg/util/sloconfig/colocation_config.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from koordebpf.slo.convert import converted, entries_of

_MOST = (1 << 63) - 1  # Koordinator's fields are of 64 bits
NotNegative = Annotated[int, Meta(ge=0, le=_MOST)]
Positive = Annotated[int, Meta(ge=1, le=_MOST)]
Percent = Annotated[int, Meta(ge=0, le=100)]


class ColocationStrategy(msgspec.Struct, frozen=True):
    """The strategy of the cluster, or of some nodes: every field may be absent."""

    enable: bool | None = None
    metricAggregateDurationSeconds: Positive | None = None
    metricReportIntervalSeconds: Positive | None = None
    cpuReclaimThresholdPercent: NotNegative | None = None
    memoryReclaimThresholdPercent: NotNegative | None = None
    degradeTimeMinutes: Positive | None = None
    updateTimeThresholdSeconds: Positive | None = None
    resourceDiffThreshold: Annotated[float, Meta(gt=0, le=1)] | None = None
    midCPUThresholdPercent: Percent | None = None
    midMemoryThresholdPercent: Percent | None = None
    midUnallocatedPercent: Percent | None = None
    midStaticCPUReservedPercent: NotNegative | None = None
    midStaticMemoryReservedPercent: NotNegative | None = None
    # Read by koord-manager alone: any value is taken.
    metricAggregatePolicy: Any = None
    metricMemoryCollectPolicy: Any = None
    cpuCalculatePolicy: Any = None
    memoryCalculatePolicy: Any = None
    midReclaimMode: Any = None
    extensions: Any = None
    batchCPUThresholdPercent: NotNegative | None = None
    batchMemoryThresholdPercent: NotNegative | None = None


def check_colocation(config: Mapping[str, Any], path: str) -> None:
    """Check the cluster's strategy and that of each entry for some nodes.

    Raises: ConfigError: a value has the wrong type or lies outside its range.
    """
    converted(config, ColocationStrategy, path)
    for index, entry in enumerate(entries_of(config, "nodeConfigs", path)):
        converted(entry, ColocationStrategy, f"{path}.nodeConfigs[{index}]")
