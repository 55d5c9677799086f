/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Who waits for memory now, and how long each cgroup has waited: the core of every program that times a stall.
 *
 * A thread is stalled from the first thing it enters to the last it leaves, of psi_memstall sections (where the kernel lets
 * them be seen), reclaim and compaction. Those two are parts, of which at most one is open; what a section holds outside
 * its parts is `other`. So every nanosecond is counted once, whichever of the programs run here.
 */
#ifndef KOORD_STALLS_H
#define KOORD_STALLS_H

#include "koord_maps.h"

struct stall_ctx {
	u64 begin_ts_ns;	/* of the stall as a whole; user space reads this one */
	u64 part_ts_ns;		/* begin of the open part */
	u64 parts_ns;		/* finished parts */
	u64 cgroup_id;
	u64 parent_id;
	u64 limit_id;
	u64 part_limit_id;
	u32 is_global;		/* no limit below the node was hit when it began */
	u32 depth;		/* of psi_memstall sections */
	u32 part;		/* the open one: KOORD_INSIDE_RECLAIM, KOORD_INSIDE_COMPACTION or 0 */
	u32 part_is_global;
	u32 inside;		/* enum koord_inside: what there was so far */
	u32 order;
	u32 epoch;		/* in which it was counted as stalled */
	u32 part_in_section;	/* the open part began in a section, and ends in it */
};

/* Open stalls, by thread. Bounded by the threads that can wait for memory at one moment. */
MAP_HASH(start, u32, struct stall_ctx, 8192);

/* Per-cgroup sums. 4096 cgroups that ever stalled, and their parents; user space removes the dead. */
MAP_HASH(stalls, u64, struct koord_stall, 4096);

/* Stays all zero: what a new element begins as, which is too large for a program's stack. */
MAP_ARRAY(no_stall, struct koord_stall, 1);

static __always_inline struct koord_stall *make_stall(u64 cgroup_id)
{
	struct koord_stall *stall = map_lookup(stalls, &cgroup_id);
	struct koord_stall *zeros;
	u32 zero = 0;

	if (stall)
		return stall;
	zeros = map_lookup(no_stall, &zero);
	if (zeros)
		map_insert(stalls, &cgroup_id, zeros);
	return map_lookup(stalls, &cgroup_id);
}

/*
 * The time since `stalled` changed last counts if a task was stalled in it. No result of an atomic operation is needed, which
 * 5.10 has not; two CPUs that come in the same few nanoseconds may count one such span twice.
 */
static __always_inline void add_some(u64 stalled, u64 *some_ns, u64 *changed_ts_ns, u64 now_ns)
{
	u64 changed = *changed_ts_ns;

	if (now_ns <= changed)
		return;
	*changed_ts_ns = now_ns;
	if (stalled)
		__sync_fetch_and_add(some_ns, now_ns - changed);
}

/* Who entered in an older epoch may have left unseen, and is not counted any more. */
static __always_inline void enter_cgroup(struct koord_stall *stall, u32 epoch, u64 now_ns)
{
	if (!stall)
		return;
	if (stall->epoch != epoch) {
		stall->epoch = epoch;
		stall->stalled = 0;
	}
	add_some(stall->stalled, &stall->some_ns, &stall->changed_ts_ns, now_ns);
	__sync_fetch_and_add(&stall->stalled, 1);
}

/* Zero: the element is younger than this stall, which therefore is not in it. */
static __always_inline void leave_cgroup(struct koord_stall *stall, u32 epoch, u64 now_ns)
{
	if (!stall || !stall->stalled || stall->epoch != epoch)
		return;
	add_some(1, &stall->some_ns, &stall->changed_ts_ns, now_ns);
	__sync_fetch_and_add(&stall->stalled, -1);
}

static __always_inline void enter_stall(u64 cgroup_id, u64 parent_id, u32 epoch, u64 now_ns)
{
	struct koord_totals *sums = get_totals();

	enter_cgroup(make_stall(cgroup_id), epoch, now_ns);
	if (parent_id)
		enter_cgroup(make_stall(parent_id), epoch, now_ns);
	if (sums) {
		if (sums->node_epoch != epoch) {
			sums->node_epoch = epoch;
			sums->node_stalled = 0;
		}
		add_some(sums->node_stalled, &sums->node_some_ns, &sums->node_changed_ts_ns, now_ns);
		__sync_fetch_and_add(&sums->node_stalled, 1);
	}
}

static __always_inline void leave_stall(struct koord_stall *own, u64 parent_id, u32 epoch, u64 now_ns)
{
	struct koord_totals *sums = get_totals();

	leave_cgroup(own, epoch, now_ns);
	if (parent_id)
		leave_cgroup(map_lookup(stalls, &parent_id), epoch, now_ns);
	if (sums && sums->node_stalled && sums->node_epoch == epoch) {
		add_some(1, &sums->node_some_ns, &sums->node_changed_ts_ns, now_ns);
		__sync_fetch_and_add(&sums->node_stalled, -1);
	}
}

static __always_inline u32 log2_slot(u64 us)
{
	u32 slot = 0;

	for (int shift = 16; shift; shift >>= 1) {
		if (us >> shift) {
			us >>= shift;
			slot += shift;
		}
	}
	return slot < KOORD_HIST_SLOTS ? slot : KOORD_HIST_SLOTS - 1;
}

static __always_inline void add_to_sum(struct koord_stall_sum *sum, u64 delta_ns)
{
	u32 slot = log2_slot(delta_ns / 1000) & (KOORD_HIST_SLOTS - 1);

	__sync_fetch_and_add(&sum->count, 1);
	__sync_fetch_and_add(&sum->total_ns, delta_ns);
	__sync_fetch_and_add(&sum->hist[slot], 1);
	if (delta_ns > sum->max_ns)
		sum->max_ns = delta_ns;	/* two CPUs may race: the maximum is a hint, the sums are exact */
}

/*
 * Begin the first thing of a stall: a section, or a part outside of any. Only global reclaim needs not know whose limit is hit,
 * and only reclaim at a limit is none where none is.
 */
static __always_inline void begin_stall(struct koord_settings *set, u32 tid, struct stall_ctx *begin,
					bool asks_limit, bool needs_limit)
{
	struct mem_cgroup *memcg = memcg_of_task((struct task_struct *)bpf_get_current_task());
	struct koord_limit limit = {};
	struct memcg_owner owner;

	lookup_owner(&owner, memcg, set);
	if (owner.steps == NOT_IN_NODE) {
		count(ignored);
		return;
	}
	if (asks_limit)
		limit = find_limit(memcg, &owner);
	if (needs_limit && !limit.id) {
		count(ignored);
		return;
	}
	begin->cgroup_id = owner.cgroup_id;
	begin->parent_id = owner.parent_id;
	begin->limit_id = limit.id;
	begin->is_global = !limit.id || limit.is_node;
	begin->part_is_global |= begin->is_global;
	begin->part_limit_id = needs_limit ? limit.id : 0;
	begin->begin_ts_ns = bpf_ktime_get_ns();
	begin->part_ts_ns = begin->begin_ts_ns;
	begin->epoch = set->epoch;
	if (map_update(start, &tid, begin))
		count(begun_full);
	else
		enter_stall(begin->cgroup_id, begin->parent_id, begin->epoch, begin->begin_ts_ns);
}

/*
 * An end that was never seen leaves its thread's stall open; it is closed when the thread begins something again. Of an older
 * epoch it is none that is lost: its thread may be stalled still, and was only not counted any more.
 */
static __always_inline void drop_stall(struct koord_settings *set, u32 tid, struct stall_ctx *old)
{
	u64 cgroup_id = old->cgroup_id;

	if (old->epoch == set->epoch)
		count(lost_ends);
	leave_stall(map_lookup(stalls, &cgroup_id), old->parent_id, old->epoch, bpf_ktime_get_ns());
	map_delete(start, &tid);
}

static __always_inline void begin_part(u32 part, u32 order, bool is_memcg_reclaim)
{
	struct koord_settings *set = get_settings();
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct stall_ctx *section = map_lookup(start, &tid);
	struct stall_ctx begin = {
		.part = part,
		.order = order,
		.part_is_global = part == KOORD_INSIDE_RECLAIM && !is_memcg_reclaim,
	};

	if (!set)
		return;
	if (!section || !section->depth || section->epoch != set->epoch) {
		if (section)
			drop_stall(set, tid, section);
		begin_stall(set, tid, &begin, !begin.part_is_global, is_memcg_reclaim);
		return;
	}
	if (section->part) {
		section->part = 0;
		count(lost_ends);
	}
	if (is_memcg_reclaim && !section->limit_id) {
		count(ignored);
	} else {
		section->part = part;
		section->part_in_section = 1;
		section->order = order;
		section->part_is_global = begin.part_is_global | section->is_global;
		section->part_limit_id = is_memcg_reclaim ? section->limit_id : 0;
		section->part_ts_ns = bpf_ktime_get_ns();
	}
}

/* Close the open part. Returns how long it was. */
static __always_inline u64 end_part(struct stall_ctx *cur, u64 now_ns)
{
	u64 delta_ns = now_ns - cur->part_ts_ns;

	cur->parts_ns += delta_ns;
	cur->inside |= cur->part;
	cur->part = 0;
	return delta_ns;
}

/* Close the stall as a whole, if nothing of it is left. */
static __always_inline void end_stall(u32 tid, struct stall_ctx *cur, struct koord_stall *own, u64 now_ns)
{
	if (cur->depth || cur->part)
		return;
	leave_stall(own, cur->parent_id, cur->epoch, now_ns);
	map_delete(start, &tid);
}

static __always_inline void send_wait(void *ctx, struct koord_settings *set, u32 kind, struct stall_ctx *cur,
				      u64 now_ns, u64 delta_ns, u32 detail, u32 is_global)
{
	u64 pid_tgid = bpf_get_current_pid_tgid();
	struct koord_wait record = {
		.head = { kind, sizeof(record), now_ns, cur->cgroup_id },
		.delta_ns = delta_ns,
		.tgid = pid_tgid >> 32,
		.tid = (u32)pid_tgid,
		.detail = detail,
		.is_global = is_global,
	};

	if (delta_ns < set->min_stall_ns || !filter_match(set, kind, record.head.cgroup_id))
		return;
	bpf_get_current_comm(record.comm, sizeof(record.comm));
	send_record(ctx, &record, sizeof(record));
}

#endif
