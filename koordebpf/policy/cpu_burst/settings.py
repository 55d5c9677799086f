"""What an operator may set of CPU burst beside the NodeSLO: section `strategies.cpuBurst`."""

from __future__ import annotations

from typing import Annotated

import msgspec


class BurstSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast quotas change, and which pods may ask for what.

    `raise_percent`      a throttled container's quota becomes this share of what it has, once in each of its periods.
                         Why 120: as in koordlet, which does it once a second.
    `lower_percent`      the same each second where the node has no room. Why 80: as in koordlet.
    `starved_percent`    a container that was throttled in at least this share of its periods of the last second is
                         raised even where the share pool has no room; 0: never. Why 0: as in koordlet; the other pods
                         of a full node pay for it.
    `return_after_s`     a container that was not throttled for so long is lowered again; 0: not before the node has no
                         room. Why 0: as in koordlet.
    `pod_annotations`    a pod's annotation koordinator.sh/cpuBurst counts. Why on: as in koordlet.
    """

    raise_percent: Annotated[int, msgspec.Meta(ge=101, le=400)] = 120
    lower_percent: Annotated[int, msgspec.Meta(ge=1, le=99)] = 80
    starved_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    return_after_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 0
    pod_annotations: bool = True
