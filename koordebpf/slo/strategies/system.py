"""spec.systemStrategy of a NodeSLO: settings of the node's own kernel.

Source: apis/slo/v1alpha1 SystemStrategy; defaults of pkg/util/sloconfig/nodeslo_config.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from koordebpf.quantity import quantity_bytes
from koordebpf.slo.convert import overlaid

Switch = Annotated[int, Meta(ge=0, le=1)]


class SystemStrategy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Absent fields leave the kernel's settings as they are."""

    minFreeKbytesFactor: Annotated[int, Meta(gt=0)] | None = None  # vm.min_free_kbytes in 1/10,000 of the capacity
    watermarkScaleFactor: Annotated[int, Meta(ge=1, le=400)] | None = None  # vm.watermark_scale_factor
    memcgReapBackGround: Switch | None = None  # Anolis kernels
    schedGroupIdentityEnabled: Switch | None = None  # Anolis kernels
    schedIdleSaverWmark: int | None = None  # ns; Anolis kernels
    schedFeatures: dict[str, bool] | None = None
    pageCacheLimitEnabled: Switch | None = None  # Anolis kernels
    totalNetworkBandwidth: str | int | None = None  # quantity, bits/s


DEFAULT_SYSTEM = SystemStrategy(totalNetworkBandwidth="0")


def overlaid_system(base: SystemStrategy, written: Mapping[str, Any], path: str) -> SystemStrategy:
    """Return `base` with the fields that `written` names.

    Raises: ConfigError: a value has the wrong type or lies outside its range, or the bandwidth is no quantity.
    """
    strategy = overlaid(base, written, path)
    if strategy.totalNetworkBandwidth is not None:
        quantity_bytes(strategy.totalNetworkBandwidth, f"{path}.totalNetworkBandwidth")
    return strategy
