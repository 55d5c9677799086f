/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps that all objects share (user space gives each object the first one's) and what every program needs: the memory
 * cgroup of a task, and whose limit was hit.
 */
#ifndef KOORD_MAPS_H
#define KOORD_MAPS_H

#include "koord_vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "koord_events.h"

#define MAX_DEPTH 24		/* of cgroups; kubepods use 4 to 8, nested nodes and init systems some more */
#define MEMCG_CHARGE_BATCH 64	/* pages; include/linux/memcontrol.h: a charge may fail this far below the limit */
#define LIMIT_MARGIN 1024	/* pages; twice a huge page, whose charge fails further below, and others give back meanwhile */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);	/* 1,300 cgroup records: more than a node starts before the reader runs */
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct koord_totals);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct koord_settings);
} settings SEC(".maps");

static __always_inline struct koord_totals *get_totals(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&totals, &zero);
}

static __always_inline struct koord_settings *get_settings(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

#define count(field)                                              \
	({                                                        \
		struct koord_totals *__t = get_totals();          \
		if (__t)                                          \
			__sync_fetch_and_add(&__t->field, 1);     \
	})

/* The record is sent, or its loss counted. */
#define send_record(record)                                                              \
	({                                                                               \
		if (bpf_ringbuf_output(&events, (record), sizeof(*(record)), 0) == 0)    \
			count(ring_sent);                                                \
		else                                                                     \
			count(ring_lost);                                                \
	})

static __always_inline struct mem_cgroup *memcg_of_task(struct task_struct *task)
{
	int ssid = bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);
	struct css_set *css_set = BPF_CORE_READ(task, cgroups);
	struct cgroup_subsys_state *css = NULL;

	bpf_core_read(&css, sizeof(css), &css_set->subsys[ssid]);
	return (struct mem_cgroup *)css;	/* css is its first member in every release */
}

struct koord_limit {
	u64 id;		/* of the cgroup whose limit is hit; 0: none is */
	bool is_node;	/* that cgroup is the node's or above it */
	bool in_node;	/* the memcg lies in the node's cgroup */
};

/*
 * All ones where a < b, for values below 2^63, and a choice by such a mask. Without branches: the verifier follows each
 * one on its own, and four in a loop over 24 levels are 700,000 instructions to it, half a second at start.
 */
static __always_inline u64 less(u64 a, u64 b)
{
	u64 mask = (long long)(a - b) >> 63;

	barrier_var(mask);	/* else the compiler makes a branch of it again */
	return mask;
}

static __always_inline u64 choose(u64 mask, u64 yes, u64 no)
{
	return (yes & mask) | (no & ~mask);
}

/*
 * The reclaim tracepoints name no memcg, so the limit that is hit is found from below: the first ancestor whose charge would
 * fail, else the one with the least room if that is little. Where all have room, nobody's limit is hit: somebody writes to
 * memory.reclaim, or lowers a limit. The walk also tells on which side of the node's cgroup the limit is.
 */
static __always_inline struct koord_limit find_limit(struct mem_cgroup *memcg, u64 node_id)
{
	u64 least = LIMIT_MARGIN, limit_id = 0, is_node = 0, in_node = -(u64)(node_id == 0), found = 0;
	struct koord_limit limit;

	for (int i = 0; i < MAX_DEPTH && memcg; i++) {
		u64 id = BPF_CORE_READ(memcg, css.cgroup, kn, id);
		u64 usage = BPF_CORE_READ(memcg, memory.usage.counter);
		u64 max = BPF_CORE_READ(memcg, memory.max);
		u64 room, is_lower;

		if (bpf_core_field_exists(memcg->memory.high)) {
			u64 high = BPF_CORE_READ(memcg, memory.high);

			max = choose(less(high, usage), high, max);
		}
		room = (max - usage) & less(usage, max);
		in_node |= ~less(0, id ^ node_id);
		is_lower = less(room, least) & ~found;
		least = choose(is_lower, room, least);
		limit_id = choose(is_lower, id, limit_id);
		is_node = choose(is_lower, in_node, is_node);
		found |= less(least, MEMCG_CHARGE_BATCH);
		memcg = (struct mem_cgroup *)BPF_CORE_READ(memcg, css.parent);
	}
	limit.id = limit_id;
	limit.in_node = in_node & 1;
	limit.is_node = is_node & limit.in_node & (node_id != 0);
	return limit;
}

#endif
