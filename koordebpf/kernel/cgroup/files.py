"""The cgroup files and node files that are written: names and formats on cgroup v1 and v2, units, and what is valid.

A file is named once for both versions, by its v1 name as in Koordinator, and so is its value. Refuses: reading and
writing them.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from koordebpf.errors import KernelFileError
from koordebpf.kernel.cgroup.tables import Rows, Table, broken_table_rule, format_rows, parse_table
from koordebpf.kernel.host.written_texts import FEATURE_NAME_RULE, PART_RULE, is_feature_name, is_part
from koordebpf.units import PAGE_BYTES

Version = Literal[1, 2]
Value = frozenset[int] | int | Table | None  # CPUs, a number, a limit for each device, or no limit

_CPUS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_NUMBER = re.compile(r"-?[0-9]{1,20}")
MAX_CPUS = 8192  # NR_CPUS with CONFIG_MAXSMP, the largest there is
_MAX_BYTES = (1 << 63) - 1
_MAX_IOPS = (1 << 32) - 2  # block/blk-throttle.c: an unsigned int, of which the largest is no limit
_MAX_LATENCY_US = 1_000_000_000  # block/blk-iolatency.c counts ns in 64 bits; a thousand seconds are no target
MIN_QUOTA_US = 1000  # kernel/sched/core.c, min_cfs_quota_period
_MAX_QUOTA_US = (1 << 44) - 1  # kernel/sched: max_cfs_runtime, MAX_BW (44 bits) in µs
# PAGE_COUNTER_MAX in bytes is LONG_MAX rounded down to a page, 9223372036854771712 with 4 KiB pages; a limit within the
# largest page size below 2^63 is none.
V1_NO_LIMIT_BYTES = (1 << 63) - (1 << 16)
IDLE_SHARES = 3  # kernel/sched/sched.h: WEIGHT_IDLEPRIO; what cpu.shares shows while cpu.idle is 1


class CgroupFile(enum.StrEnum):
    """A file of a cgroup; the value is its name on cgroup v1."""

    CPUSET_CPUS = "cpuset.cpus"
    CPU_QUOTA = "cpu.cfs_quota_us"
    CPU_PERIOD = "cpu.cfs_period_us"  # a part of cpu.max on v2
    CPU_BURST = "cpu.cfs_burst_us"
    CPU_SHARES = "cpu.shares"
    CPU_IDLE = "cpu.idle"
    CPU_BVT = "cpu.bvt_warp_ns"  # of Anolis and Alibaba kernels: lower runs first
    MEMORY_LIMIT = "memory.limit_in_bytes"
    MEMORY_MIN = "memory.min"
    MEMORY_LOW = "memory.low"
    MEMORY_HIGH = "memory.high"
    MEMORY_OOM_GROUP = "memory.oom.group"
    MEMORY_SOFT_LIMIT = "memory.soft_limit_in_bytes"  # v1 alone, as memory.low is of v2
    MEMORY_WMARK_RATIO = "memory.wmark_ratio"  # of Anolis kernels, as those below
    MEMORY_WMARK_SCALE = "memory.wmark_scale_factor"
    MEMORY_WMARK_MIN_ADJ = "memory.wmark_min_adj"
    MEMORY_PRIORITY = "memory.priority"
    MEMORY_USE_PRIORITY_OOM = "memory.use_priority_oom"
    MEMORY_PAGECACHE_ENABLE = "memory.pagecache_limit.enable"
    MEMORY_PAGECACHE_SIZE = "memory.pagecache_limit.size"
    MEMORY_PAGECACHE_SYNC = "memory.pagecache_limit.sync"
    FREEZE = "freezer.state"
    IO_READ_BPS = "blkio.throttle.read_bps_device"  # a column of io.max on v2, as those below
    IO_WRITE_BPS = "blkio.throttle.write_bps_device"
    IO_READ_IOPS = "blkio.throttle.read_iops_device"
    IO_WRITE_IOPS = "blkio.throttle.write_iops_device"
    IO_WEIGHT = "blkio.bfq.weight_device"  # with the scheduler BFQ; io.weight of io.cost on v2
    IO_LATENCY = "io.latency"
    # Columns of io.cost.qos and io.cost.model in the root; v1 has them on Anolis kernels.
    IO_COST_RPCT = "blkio.cost.qos.rpct"
    IO_COST_RLAT = "blkio.cost.qos.rlat"
    IO_COST_WPCT = "blkio.cost.qos.wpct"
    IO_COST_WLAT = "blkio.cost.qos.wlat"
    IO_MODEL_RBPS = "blkio.cost.model.rbps"
    IO_MODEL_RSEQIOPS = "blkio.cost.model.rseqiops"
    IO_MODEL_RRANDIOPS = "blkio.cost.model.rrandiops"
    IO_MODEL_WBPS = "blkio.cost.model.wbps"
    IO_MODEL_WSEQIOPS = "blkio.cost.model.wseqiops"
    IO_MODEL_WRANDIOPS = "blkio.cost.model.wrandiops"

    @property
    def controller(self) -> str:
        """The controller whose hierarchy has the file."""
        return self.value.partition(".")[0]


class Sysctl(enum.StrEnum):
    """A file of the whole node; the value is its name for sysctl(8), or its path where it is not in /proc/sys."""

    MIN_FREE_KBYTES = "vm.min_free_kbytes"
    WATERMARK_SCALE_FACTOR = "vm.watermark_scale_factor"
    SCHED_GROUP_IDENTITY = "kernel.sched_group_identity_enabled"  # of Anolis kernels, as the next three
    SCHED_IDLE_SAVER_WMARK = "kernel.sched_idle_saver_wmark"
    MEMCG_REAP_BACKGROUND = "/sys/kernel/mm/memcg_reaper/reap_background"
    PAGE_CACHE_LIMIT = "/sys/kernel/mm/pagecache_limit/enabled"
    SCHED_FEATURES = "/sys/kernel/debug/sched/features"  # a word for each of many switches
    RESCTRL_SCHEMATA = "/sys/fs/resctrl/schemata"  # of a group below it; a value for each resource and domain

    @property
    def is_in_sysfs(self) -> bool:
        """Whether it is below /sys, not /proc/sys."""
        return self.value.startswith("/sys/")

    @property
    def path(self) -> str:
        """The file below /proc/sys or /sys."""
        return self.value.removeprefix("/sys/") if self.is_in_sysfs else self.value.replace(".", "/")


class Merge(enum.Enum):
    """How two values of a file are joined to one that holds while the tree changes from the first to the second."""

    UNION = "union"  # every CPU of either
    LARGER = "larger"
    NONE = "none"  # nothing depends on the parent's value


class _Form(msgspec.Struct, frozen=True):
    v1: str | None  # None: no such file
    v2: str | None
    minimum: int
    maximum: int
    merge: Merge = Merge.NONE
    may_be_unlimited: bool = False
    is_in_pages: bool = False
    column: str | None = None  # of a table: its column in the v2 file
    rows: Rows | None = None  # of a table that has the same rows in both versions


def _cost_qos(column: str, maximum: int) -> _Form:
    rows = Rows(column, "enable=1 ctrl=user", "enable=0 ctrl=auto")
    return _Form("blkio.cost.qos", "io.cost.qos", 1, maximum, rows=rows)


def _cost_model(column: str) -> _Form:
    rows = Rows(column, "ctrl=user model=linear", "ctrl=auto")
    return _Form("blkio.cost.model", "io.cost.model", 1, _MAX_BYTES, rows=rows)


_FORMS = {
    CgroupFile.CPUSET_CPUS: _Form("cpuset.cpus", "cpuset.cpus", 0, MAX_CPUS - 1, Merge.UNION),
    CgroupFile.CPU_QUOTA: _Form("cpu.cfs_quota_us", "cpu.max", MIN_QUOTA_US, _MAX_QUOTA_US, Merge.LARGER, True),
    CgroupFile.CPU_PERIOD: _Form("cpu.cfs_period_us", None, 1000, 1_000_000),
    CgroupFile.CPU_BURST: _Form("cpu.cfs_burst_us", "cpu.max.burst", 0, _MAX_QUOTA_US),
    CgroupFile.CPU_SHARES: _Form("cpu.shares", "cpu.weight", 2, 1 << 18),
    CgroupFile.CPU_IDLE: _Form("cpu.idle", "cpu.idle", 0, 1),
    CgroupFile.CPU_BVT: _Form("cpu.bvt_warp_ns", "cpu.bvt_warp_ns", -1, 2),
    CgroupFile.MEMORY_LIMIT: _Form("memory.limit_in_bytes", "memory.max", 0, _MAX_BYTES, Merge.LARGER, True, True),
    CgroupFile.MEMORY_MIN: _Form(None, "memory.min", 0, _MAX_BYTES, Merge.LARGER, True, True),
    CgroupFile.MEMORY_LOW: _Form(None, "memory.low", 0, _MAX_BYTES, Merge.LARGER, True, True),
    CgroupFile.MEMORY_HIGH: _Form(None, "memory.high", 0, _MAX_BYTES, Merge.LARGER, True, True),
    CgroupFile.MEMORY_OOM_GROUP: _Form(None, "memory.oom.group", 0, 1),
    CgroupFile.MEMORY_SOFT_LIMIT: _Form(
        "memory.soft_limit_in_bytes", None, 0, _MAX_BYTES, may_be_unlimited=True, is_in_pages=True
    ),
    CgroupFile.MEMORY_WMARK_RATIO: _Form("memory.wmark_ratio", "memory.wmark_ratio", 0, 100),
    CgroupFile.MEMORY_WMARK_SCALE: _Form("memory.wmark_scale_factor", "memory.wmark_scale_factor", 1, 1000),
    CgroupFile.MEMORY_WMARK_MIN_ADJ: _Form("memory.wmark_min_adj", "memory.wmark_min_adj", -25, 50),
    CgroupFile.MEMORY_PRIORITY: _Form("memory.priority", "memory.priority", 0, 12),
    CgroupFile.MEMORY_USE_PRIORITY_OOM: _Form("memory.use_priority_oom", "memory.use_priority_oom", 0, 1),
    CgroupFile.MEMORY_PAGECACHE_ENABLE: _Form(None, "memory.pagecache_limit.enable", 0, 1),
    CgroupFile.MEMORY_PAGECACHE_SIZE: _Form(None, "memory.pagecache_limit.size", 0, _MAX_BYTES, is_in_pages=True),
    CgroupFile.MEMORY_PAGECACHE_SYNC: _Form(None, "memory.pagecache_limit.sync", 0, 1),
    CgroupFile.FREEZE: _Form("freezer.state", "cgroup.freeze", 0, 1),
    CgroupFile.IO_READ_BPS: _Form("blkio.throttle.read_bps_device", "io.max", 1, _MAX_BYTES, column="rbps"),
    CgroupFile.IO_WRITE_BPS: _Form("blkio.throttle.write_bps_device", "io.max", 1, _MAX_BYTES, column="wbps"),
    CgroupFile.IO_READ_IOPS: _Form("blkio.throttle.read_iops_device", "io.max", 1, _MAX_IOPS, column="riops"),
    CgroupFile.IO_WRITE_IOPS: _Form("blkio.throttle.write_iops_device", "io.max", 1, _MAX_IOPS, column="wiops"),
    CgroupFile.IO_WEIGHT: _Form("blkio.bfq.weight_device", "io.weight", 1, 1000, rows=Rows(None, "", "default")),
    CgroupFile.IO_LATENCY: _Form(None, "io.latency", 1, _MAX_LATENCY_US, rows=Rows("target")),
    CgroupFile.IO_COST_RPCT: _cost_qos("rpct", 100),
    CgroupFile.IO_COST_RLAT: _cost_qos("rlat", _MAX_LATENCY_US),
    CgroupFile.IO_COST_WPCT: _cost_qos("wpct", 100),
    CgroupFile.IO_COST_WLAT: _cost_qos("wlat", _MAX_LATENCY_US),
    CgroupFile.IO_MODEL_RBPS: _cost_model("rbps"),
    CgroupFile.IO_MODEL_RSEQIOPS: _cost_model("rseqiops"),
    CgroupFile.IO_MODEL_RRANDIOPS: _cost_model("rrandiops"),
    CgroupFile.IO_MODEL_WBPS: _cost_model("wbps"),
    CgroupFile.IO_MODEL_WSEQIOPS: _cost_model("wseqiops"),
    CgroupFile.IO_MODEL_WRANDIOPS: _cost_model("wrandiops"),
}
# Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst. FREEZING: some task has not stopped yet.
_FREEZER_STATES = {"THAWED": 0, "FREEZING": 1, "FROZEN": 1}
# Koordinator's: 10 MiB to 10 GiB, 0.1 % to 4 % of memory.
_SYSCTL_RANGES = {
    Sysctl.MIN_FREE_KBYTES: (10 << 10, 10 << 20),
    Sysctl.WATERMARK_SCALE_FACTOR: (10, 400),
    Sysctl.SCHED_GROUP_IDENTITY: (0, 1),
    Sysctl.SCHED_IDLE_SAVER_WMARK: (0, _MAX_BYTES),
    Sysctl.MEMCG_REAP_BACKGROUND: (0, 1),
    Sysctl.PAGE_CACHE_LIMIT: (0, 1),
    Sysctl.SCHED_FEATURES: (0, 1),
    Sysctl.RESCTRL_SCHEMATA: (1, (1 << 32) - 1),
}


def file_name(file: CgroupFile, version: Version) -> str | None:
    """Return the file's name in a directory of this version; None: it has no such file."""
    form = _FORMS[file]
    return form.v1 if version == 1 else form.v2


def is_table(file: CgroupFile | Sysctl) -> bool:
    """Tell whether the file has a limit for each device: its value is a `Table`."""
    return not isinstance(file, Sysctl) and (_FORMS[file].column is not None or _FORMS[file].rows is not None)


def is_throttle(file: CgroupFile | Sysctl) -> bool:
    """Tell whether each row of the file is a limit of bytes or requests a second."""
    return not isinstance(file, Sysctl) and _FORMS[file].column is not None


def table_maximum(file: CgroupFile) -> int:
    """Return the largest limit that a row of the file holds."""
    return _FORMS[file].maximum


def is_shared(file: CgroupFile | Sysctl) -> bool:
    """Tell whether the file holds values of several keys: devices by limit, scheduler features, schemata."""
    return file in (Sysctl.SCHED_FEATURES, Sysctl.RESCTRL_SCHEMATA) or is_table(file)


def merge_of(file: CgroupFile | Sysctl) -> Merge:
    """Return how the file's values are joined."""
    return Merge.NONE if isinstance(file, Sysctl) else _FORMS[file].merge


def broken_rule(file: CgroupFile, value: Value) -> str | None:
    """Return the rule that the value breaks, None where it may be written."""
    form = _FORMS[file]
    match value:
        case Table():
            return broken_table_rule(value, form.minimum, form.maximum) if is_table(file) else "must not be a table"
        case _ if is_table(file):
            return "must be a table of devices"
        case frozenset():
            if file is not CgroupFile.CPUSET_CPUS:
                return "must be a number"
            return None if all(0 <= cpu < MAX_CPUS for cpu in value) else f"CPUs must be 0 to {MAX_CPUS - 1}"
        case None:
            return None if form.may_be_unlimited else "must have a value"
        case _:
            if file is CgroupFile.CPUSET_CPUS:
                return "must be a set of CPUs"
            return None if form.minimum <= value <= form.maximum else f"must be {form.minimum} to {form.maximum}"


def broken_sysctl_rule(sysctl: Sysctl, value: int, part: str = "") -> str | None:
    """Return the rule that the value breaks, or the name of its part; None where it may be written."""
    if sysctl is Sysctl.SCHED_FEATURES:
        if not is_feature_name(part):
            return FEATURE_NAME_RULE
    elif sysctl is Sysctl.RESCTRL_SCHEMATA:
        if not is_part(part):
            return PART_RULE
    elif part:
        return "must have one value"
    low, high = _SYSCTL_RANGES[sysctl]
    return None if low <= value <= high else f"must be {low} to {high}"


def format_value(file: CgroupFile, version: Version, value: Value) -> str:
    """Return what is written so that the file holds `value`.

    cpu.max takes the quota alone and keeps its period. Nothing is written by an empty text: no CPUs are a newline.
    Of bytes, whole pages: the kernel keeps no others.
    """
    match value:
        case Table():
            return "\n".join(format_writes(file, version, Table(), value))
        case frozenset():
            return format_cpu_list(value) or "\n"
        case None:
            return "-1" if version == 1 else "max"
        case _ if file is CgroupFile.CPU_SHARES and version == 2:
            return str(weight_of_shares(value))
        case _ if file is CgroupFile.FREEZE and version == 1:
            return "FROZEN" if value else "THAWED"
        case _ if _FORMS[file].is_in_pages:
            return str(value - value % PAGE_BYTES)
        case _:
            return str(value)


def format_writes(file: CgroupFile, version: Version, now: Value, wanted: Value) -> tuple[str, ...]:
    """Return what is written, each by a write(2) of its own, so that a file that holds `now` holds `wanted`."""
    if isinstance(wanted, Table):
        rows = _rows(file, version)
        before = now if isinstance(now, Table) else Table()
        return format_rows(before, wanted, rows.column, rows.beside, rows.unset)
    return (format_value(file, version, wanted),)


def _rows(file: CgroupFile, version: Version) -> Rows:
    form = _FORMS[file]
    return form.rows or Rows(form.column if version == 2 else None)


def parse_value(file: CgroupFile, version: Version, text: str, path: str) -> Value:
    """Return what a file that reads as `text` holds; `path` is for the error.

    Raises:  KernelFileError: not the file's format.
    """
    if file is CgroupFile.CPUSET_CPUS:
        return parse_cpu_list(text, path)
    if is_table(file):
        rows = _rows(file, version)
        return parse_table(text, rows.column, path, rows.beside)
    words = text.split()
    word = words[0] if words else ""
    if word == "max":
        return None
    if file is CgroupFile.FREEZE and version == 1 and word in _FREEZER_STATES:
        return _FREEZER_STATES[word]
    if _NUMBER.fullmatch(word) is None or not -1 << 63 <= (number := int(word)) < 1 << 64:
        raise KernelFileError(path, text, "must be a number of 64 bits or max")
    match file:
        case CgroupFile.CPU_QUOTA if number < 0:
            return None
        case CgroupFile.MEMORY_LIMIT | CgroupFile.MEMORY_SOFT_LIMIT if version == 1 and number >= V1_NO_LIMIT_BYTES:
            return None
        case CgroupFile.CPU_SHARES if version == 2:
            # Since 5.15 (commit 304000390f88, "sched: Cgroup SCHED_IDLE support") an idle cgroup shows the weight 0.
            return shares_of_weight(number) if number else IDLE_SHARES
    return number


def settled(file: CgroupFile, version: Version, value: Value) -> Value:
    """Return what is read back after `value` was written: whole pages, a weight's shares.

    >>> settled(CgroupFile.CPU_SHARES, 2, 1024)
    999
    """
    if isinstance(value, int):
        if file is CgroupFile.CPU_SHARES and version == 2:
            return shares_of_weight(weight_of_shares(value))
        if _FORMS[file].is_in_pages:
            return None if value >= V1_NO_LIMIT_BYTES else value - value % PAGE_BYTES
    return value


def weight_of_shares(shares: int) -> int:
    """Return the cpu.weight for cpu.shares, by the formula of Kubernetes, Koordinator and runc before 1.3.2.

    >>> weight_of_shares(1024)
    39
    """
    return 1 + (shares - 2) * 9999 // 262142


def shares_of_weight(weight: int) -> int:
    """Return the least cpu.shares that give this cpu.weight. Koordinator's is one less, which gives the weight below.

    >>> weight_of_shares(shares_of_weight(39))
    39
    """
    return 2 + -(-(weight - 1) * 262142 // 9999)  # rounded up


def parse_cpu_list(text: str, path: str) -> frozenset[int]:
    """Return the CPUs of a list such as 0-3,8; `path` is for the error.

    Annotations have such lists too, written by users who may create pods: none costs more than all CPUs there can be.

    Source:  Documentation/admin-guide/cputopology.rst; the cpulist format of cpuset and sysfs.
    Raises:  KernelFileError: not such a list.
    """
    cpus: set[int] = set()
    rule = f"must be a list of CPUs such as 0-3,8, each below {MAX_CPUS} and named once"
    listed = 0
    for part in text.strip().split(","):
        if not part:
            continue
        if (match := _CPUS.fullmatch(part)) is None:
            raise KernelFileError(path, text, rule)
        low, high = int(match[1]), int(match[2] or match[1])
        listed += high - low + 1
        if not low <= high < MAX_CPUS or listed > MAX_CPUS:
            raise KernelFileError(path, text, rule)
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Return CPUs as the kernel prints them.

    >>> format_cpu_list({0, 1, 2, 5})
    '0-2,5'
    """
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in ranges)
