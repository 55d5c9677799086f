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
 * The reclaim tracepoints name no memcg, so the limit that is hit is found from below: the first ancestor whose charge would
 * fail, else the one with the least room. The walk also tells on which side of the node's cgroup that is.
 */
static __always_inline struct koord_limit find_limit(struct mem_cgroup *memcg, u64 node_id)
{
	struct koord_limit limit = { .id = 0, .is_node = false, .in_node = node_id == 0 };
	u64 least = KOORD_NO_LIMIT_PAGES;
	bool found = false;

	for (int i = 0; i < MAX_DEPTH && memcg; i++) {
		u64 id = BPF_CORE_READ(memcg, css.cgroup, kn, id);
		u64 usage = BPF_CORE_READ(memcg, memory.usage.counter);
		u64 max = BPF_CORE_READ(memcg, memory.max);
		u64 room;

		if (bpf_core_field_exists(memcg->memory.high)) {
			u64 high = BPF_CORE_READ(memcg, memory.high);

			if (usage > high)
				max = high;
		}
		/* room under no limit is above `least` at first, so that it is never chosen */
		room = max > usage ? max - usage : 0;
		if (node_id && id == node_id)
			limit.in_node = true;
		if (!found && room < least) {
			least = room;
			limit.id = id;
			limit.is_node = node_id && limit.in_node;
			found = room < MEMCG_CHARGE_BATCH;
		}
		memcg = (struct mem_cgroup *)BPF_CORE_READ(memcg, css.parent);
	}
	return limit;
}

#endif
