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
#define KOORD_NO_LIMIT_PAGES (1ULL << 46)	/* PAGE_COUNTER_MAX is LONG_MAX / page size: 2^51, or 2^47 with 64 KiB pages */

enum koord_kind {
	KOORD_RECLAIM = 1,
	KOORD_OOM_KILL = 2,
	KOORD_CGROUP_MKDIR = 3,
	KOORD_CGROUP_RMDIR = 4,
	KOORD_CGROUP_RENAME = 5,
	KOORD_KSWAPD = 6,
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
	__u32 tgid;
	__u32 is_global;
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

/* Value of the map `stalls`, keyed by the stalled task's cgroup_id. */
struct koord_stall {
	struct koord_stall_sum global;	/* the node was short */
	struct koord_stall_sum limit;	/* a limit below the node was hit */
	__u64 last_ts_ns;
};

/* Counters that the programs keep in the map `totals`; one element. */
struct koord_totals {
	__u64 episodes;		/* finished reclaim episodes counted in `stalls` */
	__u64 oom_kills;
	__u64 births;
	__u64 deaths;
	__u64 ring_sent;
	__u64 ring_lost;	/* records that found the ring full */
	__u64 unmatched_ends;	/* an end whose begin was ignored or not seen (attached in between, or `begun` full) */
	__u64 stalls_full;	/* episodes that found the map `stalls` full */
	__u64 ignored;		/* episodes outside the node's cgroup, and reclaim that was asked for by memory.reclaim */
	__u64 kswapd_wakes[KOORD_MAX_NUMA_NODES];
	__u64 kswapd_awake_ns[KOORD_MAX_NUMA_NODES];
	__u64 kswapd_woken_ts_ns[KOORD_MAX_NUMA_NODES];	/* 0: asleep */
};

/* What user space may change while the programs run; the map `settings`, one element. */
struct koord_settings {
	__u64 min_stall_ns;	/* shorter episodes are counted, not sent */
	__u64 node_cgroup_id;	/* the cgroup that is the node; 0: the machine is */
	__u32 hierarchy_id;	/* of the memory controller's hierarchy, /proc/cgroups; 0 on cgroup v2 */
	__u32 numa_nodes;	/* number of NUMA node ids */
	__u32 trace_kswapd;	/* send kswapd records */
	__u32 memcgs;		/* written by the scan: how many elements of `memcgs` are filled */
	__u32 memcgs_full;	/* written by the scan: cgroups that found `memcgs` full */
	__u32 reserved;
};

/* One memory cgroup as the scan found it; an element of the map `memcgs`. Its own pages, not its children's. */
struct koord_memcg {
	__u64 cgroup_id;
	__u64 parent_id;
	__u64 usage_pages;	/* with children: page_counter, memory.current / memory.usage_in_bytes */
	__u64 max_pages;	/* memory.max / memory.limit_in_bytes; PAGE_COUNTER_MAX where there is none */
	__u64 lru_pages[5];	/* inactive_anon, active_anon, inactive_file, active_file, unevictable */
};

#endif
