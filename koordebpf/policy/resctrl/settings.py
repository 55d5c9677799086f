"""What an operator may set of resctrl: section `strategies.rdtResctrl`."""

from __future__ import annotations

from typing import Annotated

import msgspec


class ResctrlSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the hardware does not say.

    `absolute_bandwidth` what 100 % are on processors whose bandwidth is no percentage (AMD), in 1/8 GB/s for each L3.
                         Why 160: koordlet's, 80 % of 25 GB/s; the kernel does not know the memory's bandwidth.
    """

    absolute_bandwidth: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 160
