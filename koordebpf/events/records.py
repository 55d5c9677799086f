"""Records of the BPF ring: one frozen value for each kind.

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
    anon_rss_pages: int  # from Linux 6.2 on some pages behind for each CPU
    file_rss_pages: int
    shmem_rss_pages: int
    tgid: int
    is_global: bool
    comm: str


class CgroupMkdir(msgspec.Struct, frozen=True, gc=False, tag="cgroup_mkdir", tag_field="kind"):
    """A cgroup was made; `name` is its last path component.

    Source: tracepoint cgroup/cgroup_mkdir.
    """

    ts_ns: int
    cgroup_id: int
    parent_id: int
    level: int
    name: str
    name_cut: bool  # the name was longer than the record holds


class CgroupRmdir(msgspec.Struct, frozen=True, gc=False, tag="cgroup_rmdir", tag_field="kind"):
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


class CompactionStall(msgspec.Struct, frozen=True, gc=False, tag="compaction", tag_field="kind"):
    """A task compacted one zone itself for `delta_ns`, to get a free block of a higher order.

    `detail`: enum compact_result, include/linux/compaction.h.
    Source:   tracepoints compaction/mm_compaction_{begin,end}, without kcompactd's own.
    """

    ts_ns: int
    cgroup_id: int
    delta_ns: int
    tgid: int
    tid: int
    detail: int
    is_global: bool
    comm: str


class ThrottleStall(msgspec.Struct, frozen=True, gc=False, tag="throttled", tag_field="kind"):
    """Reclaim made a task sleep `delta_ns` because it got nowhere.

    `detail`: enum vmscan_throttle_state, include/linux/mmzone.h.
    Source:   tracepoint vmscan/mm_vmscan_throttled, since Linux 5.16.
    """

    ts_ns: int
    cgroup_id: int
    delta_ns: int
    tgid: int
    tid: int
    detail: int
    is_global: bool
    comm: str


class MemoryStall(msgspec.Struct, frozen=True, gc=False, tag="memstall", tag_field="kind"):
    """A task was in one outermost section that the kernel itself counts as memory pressure, for `delta_ns`.

    `detail`: what lay inside, a sum of 1 reclaim, 2 compaction, 4 throttling; 0: refault, swap-in or memory.high.
    Source:   psi_memstall_enter, psi_memstall_leave (kernel/sched/psi.c).
    """

    ts_ns: int
    cgroup_id: int
    delta_ns: int
    tgid: int
    tid: int
    detail: int
    is_global: bool
    comm: str


class CgroupPopulated(msgspec.Struct, frozen=True, gc=False, tag="populated", tag_field="kind"):
    """A cgroup got its first task, or lost its last, those of its descendants included.

    Source: tracepoint cgroup/cgroup_notify_populated.
    """

    ts_ns: int
    cgroup_id: int
    populated: bool
    level: int


class TaskMigration(msgspec.Struct, frozen=True, gc=False, tag="migration", tag_field="kind"):
    """A task moved to the cgroup `cgroup_id`; the kernel does not tell where from.

    Source: tracepoints cgroup/cgroup_attach_task, cgroup/cgroup_transfer_tasks.
    """

    ts_ns: int
    cgroup_id: int
    pid: int
    threadgroup: bool  # all its threads with it
    comm: str


class MemcgEvent(msgspec.Struct, frozen=True, gc=False, tag="memcg_event", tag_field="kind"):
    """`count` more of one line of memory.events since the scan before; the kernel has no tracepoint for these.

    Source: struct mem_cgroup.memory_events by the scan, or the file memory.events.
    """

    ts_ns: int  # of the scan
    cgroup_id: int
    event: str  # high, max, oom, oom_kill
    count: int


Record = (
    ReclaimStall
    | OomKill
    | CgroupMkdir
    | CgroupRmdir
    | CgroupRename
    | KswapdRun
    | CompactionStall
    | ThrottleStall
    | MemoryStall
    | CgroupPopulated
    | TaskMigration
    | MemcgEvent
)


class StallSum(msgspec.Struct, frozen=True, gc=False):
    """Reclaim stalls of one cgroup since load; `hist[i]` counts those of [2^i, 2^(i+1)) µs."""

    count: int = 0
    total_ns: int = 0
    max_ns: int = 0
    reclaimed_pages: int = 0
    hist: tuple[int, ...] = ()


class CgroupStall(msgspec.Struct, frozen=True, gc=False):
    """One value of the map `stalls`: what a cgroup's own tasks waited since load, by cause.

    Each nanosecond stands in one of `global_`, `limit`, `compaction`, `other_global`, `other_limit`; `throttled` is a
    part of them. A parent of stalled cgroups has a row too: its sums are zero, its `some_ns` is the union over them.
    """

    cgroup_id: int
    global_: StallSum = msgspec.field(name="global")  # reclaim for the node's shortage
    limit: StallSum  # reclaim at a limit below the node
    compaction: StallSum = StallSum()
    throttled: StallSum = StallSum()
    other_global: StallSum = StallSum()  # refault, swap-in, …: only where psi_memstall can be attached to
    other_limit: StallSum = StallSum()
    some_ns: int = 0  # at least one task stalled, up to `changed_ts_ns`
    changed_ts_ns: int = 0
    last_ts_ns: int = 0
    stalled: int = 0  # tasks now: while above zero, the time since `changed_ts_ns` counts too


class Totals(msgspec.Struct, frozen=True, gc=False):
    """The programs' own counters since load, struct koord_totals."""

    episodes: int
    compactions: int
    throttles: int
    memstalls: int
    populated: int
    migrations: int
    oom_kills: int
    births: int
    deaths: int
    ring_sent: int
    ring_lost: int
    unmatched_ends: int
    begun_full: int
    stalls_full: int
    ignored: int
    lost_ends: int  # ends that were never seen, noticed when their thread began its next stall
    missed_runs: int  # runs of programs that the kernel passed over
    missed_births: int  # those of them that report mkdir, rmdir and rename
    node_some_ns: int
    node_changed_ts_ns: int
    node_stalled: int
    node_epoch: int
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
    swap_bytes: int  # with children
    high_events: int  # memory.events since the cgroup was made; on cgroup v1 without its children's
    max_events: int
    oom_events: int
    oom_kill_events: int
    slab_reclaimable_bytes: int | None = None  # with children, up to seconds old; None: not measured
