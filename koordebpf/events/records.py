"""What the kernel told: one frozen value for each kind of record.

`cgroup_id` is the kernfs id of a cgroup in the memory controller's hierarchy (the inode number of its directory);
`ts_ns` is CLOCK_MONOTONIC at the end of the event. The C side is bpf/include/koord_events.h.
"""

from __future__ import annotations

import msgspec


class ReclaimStall(msgspec.Struct, frozen=True, gc=False, tag="reclaim", tag_field="kind"):
    """A task waited `delta_ns` for reclaim and got `nr_reclaimed` pages.

    Source: tracepoints vmscan/mm_vmscan_direct_reclaim_{begin,end}, vmscan/mm_vmscan_memcg_reclaim_{begin,end}.
    """

    ts_ns: int
    cgroup_id: int  # of the stalled task
    limit_id: int  # cgroup whose limit was hit; 0: the machine ran short
    delta_ns: int
    nr_reclaimed: int
    tgid: int
    tid: int
    is_global: bool  # the shortage was the node's (machine or node cgroup), not a limit below it
    order: int
    comm: str


class OomKill(msgspec.Struct, frozen=True, gc=False, tag="oom_kill", tag_field="kind"):
    """The kernel's OOM killer chose a victim.

    Source: tracepoint oom/mark_victim.
    """

    ts_ns: int
    cgroup_id: int  # of the victim
    limit_id: int  # cgroup whose limit was hit; 0: the machine ran out
    total_vm_pages: int
    tgid: int
    is_global: bool
    comm: str


class CgroupBirth(msgspec.Struct, frozen=True, gc=False, tag="cgroup_mkdir", tag_field="kind"):
    """A cgroup was made; `name` is its last path component.

    Source: tracepoint cgroup/cgroup_mkdir.
    """

    ts_ns: int
    cgroup_id: int
    parent_id: int
    level: int
    name: str
    name_cut: bool  # the name was longer than the record holds


class CgroupDeath(msgspec.Struct, frozen=True, gc=False, tag="cgroup_rmdir", tag_field="kind"):
    """A cgroup was removed.

    Source: tracepoint cgroup/cgroup_rmdir.
    """

    ts_ns: int
    cgroup_id: int
    parent_id: int
    level: int
    name: str
    name_cut: bool


class CgroupRename(msgspec.Struct, frozen=True, gc=False, tag="cgroup_rename", tag_field="kind"):
    """A cgroup got a new name (cgroup v1 only).

    Source: tracepoint cgroup/cgroup_rename.
    """

    ts_ns: int
    cgroup_id: int
    parent_id: int
    level: int
    name: str
    name_cut: bool


class KswapdRun(msgspec.Struct, frozen=True, gc=False, tag="kswapd", tag_field="kind"):
    """kswapd of NUMA node `nid` slept again after `delta_ns` awake; sent on demand.

    Source: tracepoints vmscan/mm_vmscan_kswapd_{wake,sleep}.
    """

    ts_ns: int
    cgroup_id: int
    delta_ns: int
    nid: int
    order: int


Record = ReclaimStall | OomKill | CgroupBirth | CgroupDeath | CgroupRename | KswapdRun


class StallSum(msgspec.Struct, frozen=True, gc=False):
    """Reclaim stalls of one cgroup since load; `hist[i]` counts those of [2^i, 2^(i+1)) µs."""

    count: int = 0
    total_ns: int = 0
    max_ns: int = 0
    reclaimed_pages: int = 0
    hist: tuple[int, ...] = ()


class CgroupStall(msgspec.Struct, frozen=True, gc=False):
    """One value of the map `stalls`: the node's shortage and limits below it, apart."""

    cgroup_id: int
    global_: StallSum = msgspec.field(name="global")
    limit: StallSum
    last_ts_ns: int


class Totals(msgspec.Struct, frozen=True, gc=False):
    """The programs' own counters since load, struct koord_totals."""

    episodes: int
    oom_kills: int
    births: int
    deaths: int
    ring_sent: int
    ring_lost: int
    unmatched_ends: int
    stalls_full: int
    ignored: int
    kswapd_wakes: tuple[int, ...]
    kswapd_awake_ns: tuple[int, ...]


class MemcgSample(msgspec.Struct, frozen=True, gc=False):
    """One memory cgroup at one scan. LRU sizes are its own pages; `usage_bytes` includes its children.

    Units:  bytes. `max_bytes` None: no limit.
    Source: struct mem_cgroup: memory.usage, memory.max, nodeinfo[].lru_zone_size; or memory.stat.
    """

    cgroup_id: int
    parent_id: int
    usage_bytes: int
    max_bytes: int | None
    inactive_anon_bytes: int
    active_anon_bytes: int
    inactive_file_bytes: int
    active_file_bytes: int
    unevictable_bytes: int
