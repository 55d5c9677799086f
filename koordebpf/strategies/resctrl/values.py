"""What RdtResctrl is set by, and what is measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

from koordebpf.slo.strategies.resource_qos import ResctrlQOS
from koordebpf.state.pods.hook_pods import PodDirectory

# The record of the groups that were made, beside the journal of the writer.
GROUPS: Final = "resctrl-groups.json"
# Group → class of the NodeSLO, in the order in which they are made.
CLASSES: Final[Mapping[str, str]] = {"LSR": "lsrClass", "LS": "lsClass", "BE": "beClass"}
# percent: of the bandwidth, Intel and ARM MPAM. absolute: AMD, in 1/8 GB/s. mbps: mounted with mba_MBps.
BandwidthUnit = Literal["percent", "absolute", "mbps"]


class ResctrlSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the hardware does not say.

    `absolute_bandwidth` what 100 % are on processors whose bandwidth is no percentage (AMD), in 1/8 GB/s for each L3.
                         Why 160: koordlet's, 80 % of 25 GB/s; the kernel does not know the memory's bandwidth.
    """

    absolute_bandwidth: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 160


class CacheInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """L3 as info/L3 has it. `resources` are L3, or L3CODE and L3DATA; `domains` the ids of the caches."""

    cbm_mask: int
    min_cbm_bits: int
    resources: tuple[str, ...]
    domains: tuple[int, ...]


class BandwidthInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory bandwidth as info/MB has it. `most` is the value of no limit."""

    min_bandwidth: int
    bandwidth_gran: int
    unit: BandwidthUnit
    most: int
    domains: tuple[int, ...]


class PodTasks(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """The tasks (threads) of one pod, and how many of them are in which group of `CLASSES`."""

    total: int
    in_groups: Mapping[str, int] = {}


class ResctrlMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of one moment.

    `classes`  resctrlQOS in force, by group; empty: there is no NodeSLO.
    `groups`   that this agent has made and that are there; `foreign`: that are there and another process made.
    `pods`     directories of pods' own levels.
    `problem`  why nothing is known of it.
    `tasks`    by pod's UID, where they were counted: for a frame of one moment; an agent does that as it moves them.
    """

    classes: Mapping[str, ResctrlQOS] = {}
    l3: CacheInfo | None = None
    mb: BandwidthInfo | None = None
    groups: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    pods: tuple[PodDirectory, ...] = ()
    problem: str = ""
    tasks: Mapping[str, PodTasks] = {}


class MonitoredDomain(msgspec.Struct, frozen=True, gc=False):
    """What monitoring says of the tasks of a group and one L3 cache. Bytes; those of memory since the group was made.

    None: the kernel has no counter for it.
    """

    group: str
    domain: int
    llc_occupancy_bytes: int | None = None
    mbm_total_bytes: int | None = None
    mbm_local_bytes: int | None = None
