/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The records and map values that user space reads. koordebpf/events/layout.py names every field again and is checked
 * against this object's BTF at load, so that a drift is refused and not misread.
 *
 * cgroup_id is always the kernfs id of a cgroup of the *memory* hierarchy (v1 or v2), which is also the inode number of its
 * directory. Times are CLOCK_MONOTONIC nanoseconds.
 */
#ifndef KOORD_EVENTS_H
#define KOORD_EVENTS_H

#define KOORD_COMM_LEN 16
#define KOORD_NAME_LEN 136	/* "cri-containerd-" + 64 hex + ".scope" is 86; longer names come with name_cut set */
#define KOORD_HIST_SLOTS 32	/* slot i counts stalls of [2^i, 2^(i+1)) µs; slot 0 also those below 1 µs */
#define KOORD_MAX_NUMA_NODES 64
#define KOORD_MEMCG_EVENTS 4
#define KOORD_LEVEL_UNKNOWN 0xffffffff
#define KOORD_NO_LIMIT_PAGES (1ULL << 46)	/* PAGE_COUNTER_MAX is LONG_MAX / page size: 2^51, or 2^47 with 64 KiB pages */
#define KOORD_NOT_KNOWN (~0ULL)

enum koord_kind {
	KOORD_RECLAIM = 1,
	KOORD_OOM_KILL = 2,
	KOORD_CGROUP_MKDIR = 3,
	KOORD_CGROUP_RMDIR = 4,
	KOORD_CGROUP_RENAME = 5,
	KOORD_KSWAPD = 6,
	KOORD_COMPACTION = 7,
	KOORD_THROTTLED = 8,
	KOORD_MEMSTALL = 9,
	KOORD_POPULATED = 10,
	KOORD_MIGRATION = 11,
};

/* Every record in the ring begins with this. */
struct koord_head {
	__u32 kind;
	__u32 size;
	__u64 ts_ns;
	__u64 cgroup_id;
};

/* One finished reclaim episode of a task that had to wait for it. */
struct koord_reclaim {
	struct koord_head head;	/* cgroup_id: the stalled task's */
	__u64 limit_id;		/* the cgroup whose limit was hit; 0: the machine ran short */
	__u64 delta_ns;
	__u64 nr_reclaimed;	/* pages */
	__u32 tgid;
	__u32 tid;
	__u32 is_global;	/* 1: the machine's or the node cgroup's shortage, 0: a limit below it */
	__u32 order;
	char comm[KOORD_COMM_LEN];
};

/* One victim of the kernel's OOM killer. */
struct koord_oom_kill {
	struct koord_head head;	/* cgroup_id: the victim's */
	__u64 limit_id;		/* the cgroup whose limit was hit; 0: the machine ran out */
	__u64 total_vm_pages;
	__u64 anon_rss_pages;	/* of the victim; since v6.2 a per-CPU counter, some pages behind for each CPU */
	__u64 file_rss_pages;
	__u64 shmem_rss_pages;
	__u32 tgid;
	__u32 is_global;
	char comm[KOORD_COMM_LEN];
};

/*
 * A task waited for memory otherwise: KOORD_COMPACTION (direct compaction of one zone), KOORD_THROTTLED (a sleep inside reclaim)
 * or KOORD_MEMSTALL (one outermost psi_memstall section, which holds the others and refaults, swap-ins and memory.high).
 */
struct koord_wait {
	struct koord_head head;	/* cgroup_id: the stalled task's */
	__u64 delta_ns;
	__u32 tgid;
	__u32 tid;
	__u32 detail;		/* compaction: enum compact_result; throttled: enum vmscan_throttle_state; memstall: enum koord_inside */
	__u32 is_global;	/* 0: a limit below the node is hit */
	char comm[KOORD_COMM_LEN];
};

/* What lay inside a memstall section. */
enum koord_inside {
	KOORD_INSIDE_RECLAIM = 1,
	KOORD_INSIDE_COMPACTION = 2,
	KOORD_INSIDE_THROTTLED = 4,
};

/* A cgroup got its first task, or lost its last (with those of its descendants). */
struct koord_populated {
	struct koord_head head;
	__u32 populated;
	__u32 level;
};

/* A task, or all threads of one, moved to another cgroup. The kernel tells where to, not where from. */
struct koord_migration {
	struct koord_head head;	/* cgroup_id: the destination */
	__u32 pid;
	__u32 threadgroup;	/* 1: all threads */
	char comm[KOORD_COMM_LEN];
};

/* A cgroup of the memory hierarchy was made, removed or renamed. */
struct koord_cgroup {
	struct koord_head head;
	__u64 parent_id;	/* 0: not known */
	__u32 level;
	__u32 name_cut;
	char name[KOORD_NAME_LEN];
};

/* kswapd of one NUMA node went to sleep after `delta_ns` awake. Only traced on demand. */
struct koord_kswapd {
	struct koord_head head;
	__u64 delta_ns;
	__u32 nid;
	__u32 order;
};

/* Sum of the reclaim stalls of one cgroup since load, of one scope. */
struct koord_stall_sum {
	__u64 count;
	__u64 total_ns;
	__u64 max_ns;
	__u64 reclaimed_pages;
	__u32 hist[KOORD_HIST_SLOTS];
};

/*
 * Value of the map `stalls`, keyed by cgroup_id: the stalled task's own cgroup, and the parent of such a one, whose sums stay
 * zero and whose `some_ns` is the union over its children. The parts of one stall are counted once: `other_*` is what
 * psi_memstall counts outside reclaim and compaction; its `count` and `hist` are of the sections that hold neither.
 * `throttled` alone is a part of the others.
 */
struct koord_stall {
	struct koord_stall_sum global;	/* reclaim, the node was short */
	struct koord_stall_sum limit;	/* reclaim, a limit below the node was hit */
	struct koord_stall_sum compaction;
	struct koord_stall_sum throttled;
	struct koord_stall_sum other_global;	/* refault, swap-in, … while no limit below the node was hit */
	struct koord_stall_sum other_limit;	/* the same at a limit below the node */
	__u64 some_ns;		/* time in which at least one task was stalled, up to changed_ts_ns */
	__u64 changed_ts_ns;	/* when `stalled` changed last: while it is above zero the time since then counts too */
	__u64 last_ts_ns;	/* end of the last stall */
	__u32 stalled;		/* tasks that are stalled now; nothing where `epoch` is not that of the settings */
	__u32 epoch;
};

/* Counters that the programs keep in the map `totals`; one element. */
struct koord_totals {
	__u64 episodes;		/* finished reclaim episodes counted in `stalls` */
	__u64 compactions;
	__u64 throttles;
	__u64 memstalls;	/* finished outermost psi_memstall sections */
	__u64 populated;	/* changes, both ways */
	__u64 migrations;
	__u64 oom_kills;
	__u64 births;
	__u64 deaths;
	__u64 ring_sent;
	__u64 ring_lost;	/* records that found the ring full */
	__u64 unmatched_ends;	/* an end whose begin was ignored or not seen (attached in between, or `start` full) */
	__u64 begun_full;	/* begins that found the map `start` full */
	__u64 stalls_full;	/* episodes that found the map `stalls` full */
	__u64 ignored;		/* episodes outside the node's cgroup, and reclaim that was asked for by memory.reclaim */
	__u64 lost_ends;	/* ends that were never seen, noticed when the same thread began its next stall */
	__u64 missed_runs;	/* filled in by user space: runs of the programs that the kernel passed over */
	__u64 missed_births;	/* filled in by user space: those of them that report mkdir, rmdir and rename */
	__u64 node_some_ns;	/* as koord_stall.some_ns, for any task of the node */
	__u64 node_changed_ts_ns;
	__u64 node_stalled;	/* as koord_stall.stalled, by node_epoch */
	__u64 node_epoch;
	__u64 kswapd_wakes[KOORD_MAX_NUMA_NODES];
	__u64 kswapd_awake_ns[KOORD_MAX_NUMA_NODES];
	__u64 kswapd_woken_ts_ns[KOORD_MAX_NUMA_NODES];	/* 0: asleep */
};

/* What user space may change while the programs run; the map `settings`, one element. */
struct koord_settings {
	__u64 min_stall_ns;	/* shorter episodes are counted, not sent */
	__u64 node_cgroup_id;	/* the cgroup that is the node; 0: the machine is */
	__u32 hierarchy_id;	/* of the memory controller's hierarchy, /proc/cgroups; 0 on cgroup v2 */
	__u32 node_level;	/* of the node's cgroup in that hierarchy; the root is 0. The programs fill in an unknown one */
	__u32 numa_nodes;	/* number of NUMA node ids */
	__u32 kinds;		/* bit 1 << enum koord_kind: these are sent; all are counted */
	__u32 only_wanted;	/* send only records of the cgroups in the map `wanted` */
	__u32 memcgs;		/* written by the scan: how many elements of `memcgs` are filled */
	__u32 memcgs_full;	/* written by the scan: cgroups that found `memcgs` full */
	__u32 epoch;		/* raised by user space when ends were lost: stalled tasks are counted from zero */
	__u32 page_shift;	/* of this kernel's pages: bytes >> page_shift */
	__u32 reserved;
};

/* One memory cgroup as the scan found it; an element of the map `memcgs`. LRU: its own pages, not its children's. */
struct koord_memcg {
	__u64 cgroup_id;
	__u64 parent_id;
	__u64 usage_pages;	/* with children: page_counter, memory.current / memory.usage_in_bytes */
	__u64 max_pages;	/* memory.max / memory.limit_in_bytes; PAGE_COUNTER_MAX where there is none */
	__u64 swap_pages;	/* with children: memory.swap.current / memsw − memory */
	__u64 slab_reclaimable_bytes;	/* with children, up to seconds old; KOORD_NOT_KNOWN where it is small or not reported */
	__u64 events[KOORD_MEMCG_EVENTS];	/* high, max, oom, oom_kill; memory.events, on v1 the cgroup's own */
	__u64 lru_pages[5];	/* inactive_anon, active_anon, inactive_file, active_file, unevictable; summed over NUMA nodes */
};

#endif
