/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps that user space reads and writes, and what every program needs: the memory cgroup of a task, and whose limit was hit. */
#ifndef KOORD_MAPS_H
#define KOORD_MAPS_H

#ifdef KOORD_BCC
#include "koord_bcc.h"
#else
#include "koord_core.h"
#endif
#include "koord_events.h"

#define MAX_DEPTH 24		/* of cgroups; kubepods use 4 to 8, nested nodes and init systems some more */
#define CHARGE_BATCH 64		/* pages; MEMCG_CHARGE_BATCH, memcontrol.h: a charge may fail this far below the limit */
#define NOT_IN_NODE 0xffffffff
#define MACHINE_IS_NODE 0xfffffffe	/* as steps: further up than any cgroup */
#define KERNEL_THREAD 0x00200000	/* include/linux/sched.h: PF_KTHREAD */
#define LIMIT_MARGIN 1024	/* pages; twice a huge page, whose charge fails further below, and others uncharge meanwhile */

RING(events, 256 * 1024);	/* 1,300 cgroup records: more than a node starts before the reader runs */
MAP_ARRAY(totals, struct koord_totals, 1);
MAP_ARRAY(settings, struct koord_settings, 1);

/* The cgroups whose records are sent while settings.only_wanted is set; of a thousand pods four each. */
MAP_HASH(wanted, u64, u32, 4096);

/* What does not change about a memory cgroup. Keyed by the serial number of its state, which no other ever gets. */
struct memcg_owner_key {
	u64 serial_nr;
	u64 node_cgroup_id;
};

struct memcg_owner {
	u64 cgroup_id;
	u64 parent_id;
	u32 steps;	/* up to the node's cgroup; NOT_IN_NODE */
	u32 reserved;
};

MAP_LRU_HASH(owners, struct memcg_owner_key, struct memcg_owner, 4096);

static __always_inline struct koord_totals *get_totals(void)
{
	u32 zero = 0;

	return map_lookup(totals, &zero);
}

static __always_inline struct koord_settings *get_settings(void)
{
	u32 zero = 0;

	return map_lookup(settings, &zero);
}

#define count(field)                                              \
	({                                                        \
		struct koord_totals *__t = get_totals();          \
		if (__t)                                          \
			__sync_fetch_and_add(&__t->field, 1);     \
	})

/* The record is sent, or its loss counted. */
static __always_inline void send_record(void *ctx, void *record, u64 bytes)
{
	if (ring_output(ctx, events, record, bytes) == 0)
		count(ring_sent);
	else
		count(ring_lost);
}

/* Whether user space asked for such a record. What is not sent is counted all the same. */
static __always_inline bool filter_match(struct koord_settings *set, u32 kind, u64 cgroup_id)
{
	if (!(set->kinds & (1U << kind)))
		return false;
	return !set->only_wanted || map_lookup(wanted, &cgroup_id);
}

static __always_inline bool is_kernel_thread(struct task_struct *task)
{
	return READ(task, flags) & KERNEL_THREAD;
}

static __always_inline struct mem_cgroup *memcg_of_task(struct task_struct *task)
{
	struct css_set *css_set = READ(task, cgroups);

	return (struct mem_cgroup *)MEMORY_CSS(css_set);	/* css is its first member in every release */
}

/*
 * 1 where a < b, else 0, for values below 2^63; and a choice by it. Without branches: the verifier follows each one on its own,
 * and four in a loop over 24 levels are too many. By multiplication, because since v6.18 it follows masks that are all ones or
 * zero as if they were branches.
 */
static __always_inline u64 less(u64 a, u64 b)
{
	u64 bit = a - b;

	barrier_var(bit);	/* the compiler must not know where it comes from, nor below what it can be: it would branch */
	bit >>= 63;
	barrier_var(bit);
	return bit;
}

static __always_inline u64 choose(u64 bit, u64 yes, u64 no)
{
	return no + (yes - no) * bit;
}

/*
 * In a cgroup namespace user space does not know how deep its node lies. The first task in it that waits tells: its ancestors
 * are compared one by one.
 */
static __always_inline void learn_node_level(struct mem_cgroup *memcg, struct koord_settings *set)
{
	for (int i = 0; i < MAX_DEPTH && memcg; i++) {
		struct cgroup *cgrp = READ(memcg, css.cgroup);

		if (kernfs_id(READ(cgrp, kn)) == set->node_cgroup_id) {
			set->node_level = READ(cgrp, level);
			return;
		}
		memcg = (struct mem_cgroup *)READ(memcg, css.parent);
	}
}

static __always_inline u32 steps_to_node(struct mem_cgroup *memcg, struct koord_settings *set)
{
	u32 steps;

	if (set->node_cgroup_id == 0)
		return MACHINE_IS_NODE;
	if (set->node_level == KOORD_LEVEL_UNKNOWN)
		learn_node_level(memcg, set);
	steps = READ(memcg, css.cgroup, level) - set->node_level;
	for (u32 i = 0; i < MAX_DEPTH && memcg; i++) {
		if (i == steps)
			return kernfs_id(READ(memcg, css.cgroup, kn)) == set->node_cgroup_id ? steps : NOT_IN_NODE;
		memcg = (struct mem_cgroup *)READ(memcg, css.parent);
	}
	return NOT_IN_NODE;
}

static __always_inline void lookup_owner(struct memcg_owner *owner, struct mem_cgroup *memcg, struct koord_settings *set)
{
	struct memcg_owner_key key = { READ(memcg, css.serial_nr), set->node_cgroup_id };
	struct cgroup_subsys_state *parent;
	struct memcg_owner *known = map_lookup(owners, &key);

	if (known) {
		*owner = *known;
		return;
	}
	parent = READ(memcg, css.parent);
	owner->cgroup_id = kernfs_id(READ(memcg, css.cgroup, kn));
	owner->parent_id = parent ? kernfs_id(READ(parent, cgroup, kn)) : 0;
	owner->steps = steps_to_node(memcg, set);
	owner->reserved = 0;
	map_update(owners, &key, owner);
}

static __always_inline u64 cgroup_id_of_counter(u64 counter)
{
	return kernfs_id(READ(memcg_of_counter((const struct page_counter *)counter), css.cgroup, kn));
}

/* Whose limit makes a task wait. */
struct koord_limit {
	u64 id;		/* of the cgroup; 0: no limit is hit */
	bool is_node;	/* that cgroup is the node's or above it */
};

/*
 * The reclaim tracepoints name no memcg, so the limit that is hit is found from below: the first ancestor whose charge would
 * fail, else the one with the least room if that is little. Where all have room, no limit is hit: a task writes to
 * memory.reclaim, or lowers a limit. It walks the counters, whose parent is the one that is charged too.
 */
static __always_inline struct koord_limit find_limit(struct mem_cgroup *memcg, const struct memcg_owner *owner)
{
	const struct page_counter *counter = &memcg->memory;
	u64 least = LIMIT_MARGIN, at_limit = 0, level = 0;
	struct koord_limit limit = {};

	for (u64 i = 0; i < MAX_DEPTH && counter; i++) {
		struct koord_counter now;
		u64 room, is_lower;

		read_counter(&now, counter);
		now.max = choose(less(now.high, now.usage), now.high, now.max);
		room = (now.max - now.usage) * less(now.usage, now.max);
		is_lower = less(room, least);
		least = choose(is_lower, room, least);
		at_limit = choose(is_lower, (u64)counter, at_limit);
		level = choose(is_lower, i, level);
		if (least < CHARGE_BATCH)
			break;
		counter = now.parent;
	}
	if (!at_limit)
		return limit;
	limit.is_node = level >= owner->steps;
	if (level == 0)
		limit.id = owner->cgroup_id;
	else if (level == 1)
		limit.id = owner->parent_id;
	else
		limit.id = cgroup_id_of_counter(at_limit);
	return limit;
}

#endif
