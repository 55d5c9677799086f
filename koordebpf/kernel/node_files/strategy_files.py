"""Which files of this kernel each strategy writes, and which of them are there: looks, and writes none.

A part of a strategy works where one of its files is there. Files of Anolis kernels are left out: the pages of the
strategies name them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.files import CgroupFile, Sysctl, file_name
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.proc.core_sched import cookie_of
from koordebpf.kernel.signals.interface import SignalSource

_PROC_SYS, _SYS = Path("/proc/sys"), Path("/sys")
_RESCTRL = Path("/sys/fs/resctrl/schemata")
_SCHED_FEATURES = (Path("/sys/kernel/debug/sched/features"), Path("/sys/kernel/debug/sched_features"))
_RECLAIM = "memory.reclaim"
_PRESSURE = "memory.pressure"


class StrategyPart(NamedTuple):
    """What a strategy does with one file.

    Attributes:
        gate: the strategy's feature gate.
        does: in words.
        since: the Linux release that first had it, as `v1` and `v2` say.
        v1: the file's name in a pod's directory, or its path; None: cgroup v1 has none.
        v2: the same of cgroup v2.
        controller: whose hierarchy the file is in; "": it is of the machine.
        is_in_root: the file is in the hierarchy's root alone.
        remedy: what to do where it is missing.
    """

    gate: str
    does: str
    since: str
    v1: str | None
    v2: str | None
    controller: str
    remedy: str = "Use a newer kernel."
    is_in_root: bool = False


def _of(
    gate: str, does: str, since: str, file: CgroupFile, *, is_in_root: bool = False, remedy: str = ""
) -> StrategyPart:
    remedy = remedy or "Use a newer kernel."
    v1 = None if file in _V2_ALONE else file_name(file, 1)
    return StrategyPart(gate, does, since, v1, file_name(file, 2), file.controller, remedy, is_in_root)


_V2_ALONE = (CgroupFile.IO_COST_RPCT,)  # v1 has it on Anolis kernels
_BFQ = "Give the device the scheduler bfq (v1), or enable io.cost (CONFIG_BLK_CGROUP_IOCOST)."
_SYSCTL_REMEDY = "Give the agent a writable /proc/sys: deploy/components/privileged."
_DEBUGFS = "Mount debugfs at /sys/kernel/debug, with CONFIG_SCHED_DEBUG."
PARTS = (
    _of("CgroupReconcile", "keep requested memory from any reclaim", "4.18", CgroupFile.MEMORY_MIN),
    _of("CgroupReconcile", "protect requested memory from reclaim", "4.5", CgroupFile.MEMORY_LOW),
    _of("CgroupReconcile", "the same on v1, while the machine is short", "2.6.34", CgroupFile.MEMORY_SOFT_LIMIT),
    _of("CgroupReconcile", "throttle above a share of the limit", "4.5", CgroupFile.MEMORY_HIGH),
    _of("CgroupReconcile", "kill a container's processes together", "4.19", CgroupFile.MEMORY_OOM_GROUP),
    _of("CPUBurst", "save unused quota for a burst", "5.14", CgroupFile.CPU_BURST),
    _of("CPUBurst", "raise the quota for a while", "3.2", CgroupFile.CPU_QUOTA),
    _of("BlkIOReconcile", "limit bytes and operations a second", "2.6.37", CgroupFile.IO_READ_BPS),
    _of("BlkIOReconcile", "weigh pods", "5.4", CgroupFile.IO_WEIGHT, remedy=_BFQ),
    _of("BlkIOReconcile", "keep a latency target", "4.19", CgroupFile.IO_LATENCY),
    _of("BlkIOReconcile", "model the device", "5.4", CgroupFile.IO_COST_RPCT, is_in_root=True),
    StrategyPart("ProactiveReclaim", "take idle memory", "5.19", None, _RECLAIM, "memory", "Use cgroup v2."),
    StrategyPart("ProactiveReclaim", "see the stall it causes", "4.20", None, _PRESSURE, "memory", "Boot with psi=1."),
    _of("BEPageCacheSuppress", "limit page cache of best-effort pods", "4.5", CgroupFile.MEMORY_HIGH),
    _of("BEPageCacheSuppress", "the same on v1, while the machine is short", "2.6.34", CgroupFile.MEMORY_SOFT_LIMIT),
    _of("GroupIdentity", "run best-effort pods when others are idle", "5.15", CgroupFile.CPU_IDLE),
    _of("GroupIdentity", "weigh pods", "2.6.24", CgroupFile.CPU_SHARES),
    _of("BatchResource", "limit CPU", "3.2", CgroupFile.CPU_QUOTA),
    _of("BatchResource", "limit memory", "2.6.25", CgroupFile.MEMORY_LIMIT),
    _of("CPUSetAllocator", "bind containers to CPUs", "2.6.24", CgroupFile.CPUSET_CPUS),
    _of("CPUNormalization", "scale the quota", "3.2", CgroupFile.CPU_QUOTA),
    StrategyPart("CoreSched", "keep pods off one core", "5.14", "prctl(PR_SCHED_CORE)", "prctl(PR_SCHED_CORE)", "",
                 "Build it with CONFIG_SCHED_CORE; the CPUs must have two threads a core."),
    *(
        StrategyPart("SystemConfig", f"set {each.value}", since, str(_PROC_SYS / each.path), str(_PROC_SYS / each.path),
                     "", _SYSCTL_REMEDY)
        for each, since in ((Sysctl.MIN_FREE_KBYTES, "2.6"), (Sysctl.WATERMARK_SCALE_FACTOR, "4.6"))
    ),
    StrategyPart("SystemConfig", "switch scheduler features", "2.6.25", *(str(_SCHED_FEATURES[0]),) * 2, "", _DEBUGFS),
    StrategyPart("RdtResctrl", "share L3 cache and memory bandwidth", "4.10", *(str(_RESCTRL),) * 2, "",
                 "Use a CPU with RDT, AMD QoS or MPAM; mount -t resctrl resctrl /sys/fs/resctrl."),
)  # fmt: skip


_NO_DIRECTORY = "The kubelet makes a pod's directory in each hierarchy: restart it, and look again."


def file_of(part: StrategyPart, pod: Path, mounts: Mapping[str, ControllerMount]) -> str | None:
    """Return the file by which a part works here; None: there is none.

    Args:
        part: one of `PARTS`.
        pod: a directory of a pod, relative to every hierarchy.
        mounts: by controller; one without a mount has no file.
    """
    if not part.controller:
        return _of_machine(part)
    mount = _mount_of(part, mounts)
    if mount is None:
        return None
    name = part.v1 if mount.version == 1 else part.v2
    directory = mount.mount_point if part.is_in_root else mount.mount_point / pod
    return name if name is not None and (directory / name).exists() else None


def support_of_strategies(
    gates: Mapping[str, bool], pod: Path | None, mounts: Mapping[str, ControllerMount]
) -> tuple[SignalSource, ...]:
    """Return a line for each part of the strategies whose gates are on.

    `pod` is the directory of any pod of the node; None: there is none yet, and only the machine's files are looked at.
    """
    lines = []
    for part in PARTS:
        if not gates.get(part.gate) or not _is_of(part, mounts):
            continue
        if part.controller and pod is None:
            lines.append(SignalSource(part.gate, f"{part.does}: seen once the node has a pod", works=True))
        elif how := file_of(part, pod or Path(), mounts):
            lines.append(SignalSource(part.gate, f"{part.does}: {how}", works=True))
        elif missing := _missing_directory(part, pod or Path(), mounts):
            reason = f"{part.does}: there is no {missing}"
            lines.append(SignalSource(part.gate, "", False, reason, _NO_DIRECTORY, "this part is left out"))
        else:
            name = part.v2 if _version(part, mounts) == 2 else part.v1
            reason = f"{part.does}: {f'this kernel has no {name}' if name else f'only cgroup v2 has {part.v2}'}"
            remedy = part.remedy if name else "Use cgroup v2."
            lines.append(SignalSource(part.gate, "", False, reason, remedy, "this part is left out"))
    return tuple(lines)


# Where the hierarchy has no directory of the pod, nothing is known of the kernel's files.
def _missing_directory(part: StrategyPart, pod: Path, mounts: Mapping[str, ControllerMount]) -> Path | None:
    mount = _mount_of(part, mounts)
    if not part.controller or part.is_in_root or mount is None or (part.v1 if mount.version == 1 else part.v2) is None:
        return None
    directory = mount.mount_point / pod
    return None if directory.is_dir() else directory


# A soft limit is of v1 as memory.low is of v2: neither is missing where the other one is.
def _is_of(part: StrategyPart, mounts: Mapping[str, ControllerMount]) -> bool:
    return part.v2 is not None or _version(part, mounts) == 1


def _version(part: StrategyPart, mounts: Mapping[str, ControllerMount]) -> int:
    mount = _mount_of(part, mounts) or mounts.get("memory")
    return mount.version if mount else 2


# The controller of block devices is called blkio on v1, and io on v2.
def _mount_of(part: StrategyPart, mounts: Mapping[str, ControllerMount]) -> ControllerMount | None:
    return mounts.get(part.controller) or mounts.get({"io": "blkio", "blkio": "io"}.get(part.controller, ""))


def _of_machine(part: StrategyPart) -> str | None:
    if part.gate == "CoreSched":
        return "prctl(PR_SCHED_CORE)" if _has_core_scheduling() else None
    paths = _SCHED_FEATURES if part.v1 == str(_SCHED_FEATURES[0]) else (Path(part.v1 or ""),)
    return next((str(path) for path in paths if _exists(path)), None)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        return error.errno == errno.EACCES


def _has_core_scheduling() -> bool:
    try:
        return cookie_of(os.getpid()) is not None
    except SupportError:
        return False
