"""What is measured of a node for Katalyst's plugins inside the agent, beside what every decision has. Values only.

Absent is not zero: a part that is None was not measured, and the plugin that needs it says so.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.state.katalyst.answers import PluginAnswer


class NumaMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One NUMA node's memory: its zone Normal in /proc/zoneinfo, in pages, and what its pods hold there, in bytes.

    `total_bytes` is MemTotal of /sys/devices/system/node/node<id>/meminfo.
    """

    node: int
    total_bytes: int
    free_pages: int
    min_pages: int
    low_pages: int
    inactive_file_pages: int
    active_file_pages: int
    pods: Mapping[str, int] = {}  # memory.numa_stat, by UID


class SystemMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The machine's memory. Bytes; `scale_factor` is vm.watermark_scale_factor, in ten-thousandths.

    `pressure` is `some avg10` of the kubelet's burstable level, in percent; None: cgroup v1, or no such file.
    `pods_pressure` is the same of each pod, by UID, with those alone whose file could be read; None: while so little of
    the level waits, nothing asks for it.
    `stolen_pages` are those that kswapd has reclaimed since boot (pgsteal_kswapd); None: nothing asks for them.
    """

    total_bytes: int
    free_bytes: int
    available_bytes: int
    scale_factor: int
    pressure: float | None = None
    stolen_pages: int | None = None
    pods_pressure: Mapping[str, float] | None = None


class CnrZone(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A topology zone of the CustomNodeResource: what it has to give, and what of that pods have.

    `allocations` are by consumer, which is namespace/name/uid of a pod; of resources that plugins judge.
    """

    name: str
    allocatable: Mapping[str, int] = {}
    allocations: Mapping[str, Mapping[str, int]] = {}


class Cnr(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What this node's CustomNodeResource has to give to reclaimed pods, by resource; amounts rounded up.

    `numa` and `nics` are its zones of these types, by name.
    """

    allocatable: Mapping[str, int] = {}
    numa: tuple[CnrZone, ...] = ()
    nics: tuple[CnrZone, ...] = ()


class RemoteAnswers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What plugins outside the process answered: to which call of the manager, and until when."""

    call: int
    answers: tuple[PluginAnswer, ...]
    ended_ns: int


class ImageFs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The filesystem that has containers' writable layers, at `at_ns`. `inodes` None: it does not count them, as btrfs.

    `available_bytes` is what others than root may still write, as the kubelet counts.
    """

    path: str
    capacity_bytes: int
    available_bytes: int
    at_ns: int
    inodes: int | None = None
    inodes_free: int | None = None


class RootfsUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the writable layers of a pod's containers occupy. `is_cut`: at least so much, as a bound was reached."""

    used_bytes: int
    inodes: int
    is_cut: bool = False


class RootfsMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The writable layers of pods by UID, looked at from `began_ns` to `ended_ns`; others are not known."""

    began_ns: int
    ended_ns: int
    pods: Mapping[str, RootfsUse]


class KatalystMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything that Katalyst's manager and the plugins inside decide from, beside the view.

    `links` say which NICs of the CustomNodeResource have a link, by name; one that is left out was not seen.
    `remote_plugins` are the names of those outside that are registered.
    """

    system: SystemMemory | None = None
    numa: tuple[NumaMemory, ...] | None = None
    cnr: Cnr | None = None
    links: Mapping[str, bool] = {}
    remote_plugins: tuple[str, ...] = ()
    remote: RemoteAnswers | None = None
    image_fs: ImageFs | None = None
    rootfs: RootfsMeasured | None = None
