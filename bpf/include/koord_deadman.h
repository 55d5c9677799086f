/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the dead man's switch and user space share. koordebpf/kernel/bpf/deadman.py has the same layout. */
#ifndef KOORD_DEADMAN_H
#define KOORD_DEADMAN_H

enum koord_deadman_mode {
	KOORD_DEADMAN_OFF = 0,
	KOORD_DEADMAN_COUNT = 1,	/* nothing is signalled */
	KOORD_DEADMAN_KILL = 2,
};

#define KOORD_DEADMAN_LEVELS 4

/* Written by user space; the heartbeat first, which makes everything else harmless for `after_ns`. */
struct koord_deadman_order {
	u64 heartbeat_ns;	/* CLOCK_MONOTONIC */
	u64 after_ns;		/* an older heartbeat is late */
	u64 stall_ns;		/* so long the node's tasks waited for memory within `after_ns` */
	u64 until_ns;		/* until then the choice of the victim holds */
	u64 victim_id;		/* its cgroup of the memory controller; 0: none */
	u64 node_cgroup_id;	/* 0: the machine */
	u64 above_pages;	/* a node cgroup: its usage without page cache and reclaimable slab; ~0: never */
	u64 below_pages;	/* the machine: free, page cache and reclaimable slab; 0: never */
	u32 mode;
	u32 numa_nodes;		/* of the machine */
	u32 percent;		/* of a limit above the victim in use: as the node's threshold is of the node */
	u32 page_shift;		/* of this kernel's pages: bytes >> page_shift */
	u64 above_ids[KOORD_DEADMAN_LEVELS];	/* cgroups above the victim and below the node; 0: none */
};

/* Written by the programs. Of one heartbeat there is one at most. */
struct koord_deadman_report {
	u64 heartbeat_ns;	/* for which it was; 0: never yet */
	u64 fired_ns;
	u64 victim_id;
	u64 stall_ns;		/* within the last `after_ns`, or less */
	u64 pages;		/* in use on the node, or available on the machine */
	u64 swept_ns;		/* the last look at all tasks */
	u32 mode;
	u32 sweeps;
	u32 seen;		/* processes of the victim, at the first look */
	u32 signalled;		/* signals of all looks */
	u32 refused;
	int error;		/* the last refusal */
	u64 fired;		/* since load */
	u64 late_stalls;	/* stalls that ended while the heartbeat was late */
	u64 spared;		/* of those with stall enough: the node had memory */
	u64 at_limit;		/* 1: the stalls were at a limit above the victim, not at the node's */
};

#endif
