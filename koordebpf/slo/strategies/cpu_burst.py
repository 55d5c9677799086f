"""spec.cpuBurstStrategy of a NodeSLO.

Source: apis/slo/v1alpha1 CPUBurstStrategy; defaults of pkg/util/sloconfig/nodeslo_config.go.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from koordebpf.quantity import MOST_AMOUNT


class CPUBurstStrategy(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a container may go above its CPU limit, and for how long. Every field may be absent."""

    policy: Literal["none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto"] | None = None
    cpuBurstPercent: Annotated[int, Meta(ge=1, le=10000)] | None = None  # of the limit, for cpu.cfs_burst_us
    cfsQuotaBurstPercent: Annotated[int, Meta(ge=100, le=MOST_AMOUNT)] | None = (
        None  # of the limit, for cpu.cfs_quota_us
    )
    cfsQuotaBurstPeriodSeconds: Annotated[int, Meta(ge=-1)] | None = None  # −1: without end
    sharePoolThresholdPercent: Annotated[int, Meta(ge=0, le=100)] | None = None


DEFAULT_CPU_BURST = CPUBurstStrategy(
    policy="none",
    cpuBurstPercent=1000,
    cfsQuotaBurstPercent=300,
    cfsQuotaBurstPeriodSeconds=-1,
    sharePoolThresholdPercent=50,
)
