"""spec.systemStrategy of a NodeSLO: settings of the node's own kernel.

Source: apis/slo/v1alpha1 SystemStrategy; defaults of pkg/util/sloconfig/nodeslo_config.go.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

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
