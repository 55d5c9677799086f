// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Reclaim stalls: who waited for memory, how long, and whose limit made it wait. And how long kswapd was at it. */
#include "koord_stalls.h"

KEEP_TYPE(koord_reclaim);
KEEP_TYPE(koord_kswapd);

static __always_inline int end_reclaim(void *ctx, u64 pages)
{
	struct koord_settings *set = get_settings();
	u64 pid_tgid = bpf_get_current_pid_tgid();
	u32 tid = (u32)pid_tgid;
	struct stall_ctx *cur = map_lookup(start, &tid);
	u64 now_ns = bpf_ktime_get_ns();
	struct koord_stall_sum *sum;
	struct koord_stall *own;
	u64 delta_ns;

	if (!set || !cur || cur->part != KOORD_INSIDE_RECLAIM) {
		count(unmatched_ends);
		return 0;
	}
	delta_ns = end_part(cur, now_ns);
	own = make_stall(cur->cgroup_id);
	if (own) {
		sum = cur->part_is_global ? &own->global : &own->limit;
		add_to_sum(sum, delta_ns);
		__sync_fetch_and_add(&sum->reclaimed_pages, pages);
		own->last_ts_ns = now_ns;
	} else {
		count(stalls_full);
	}
	count(episodes);
	if (delta_ns >= set->min_stall_ns && filter_match(set, KOORD_RECLAIM, cur->cgroup_id)) {
		struct koord_reclaim record = {
			.head = { KOORD_RECLAIM, sizeof(record), now_ns, cur->cgroup_id },
			.limit_id = cur->part_limit_id,
			.delta_ns = delta_ns,
			.nr_reclaimed = pages,
			.tgid = pid_tgid >> 32,
			.tid = tid,
			.is_global = cur->part_is_global,
			.order = cur->order,
		};

		bpf_get_current_comm(record.comm, sizeof(record.comm));
		send_record(ctx, &record, sizeof(record));
	}
	end_stall(tid, cur, own, now_ns);
	return 0;
}

/*
 * (order, gfp_flags) up to 6.18, (gfp_flags, order, memcg) in 7.2. Who may reclaim has __GFP_DIRECT_RECLAIM, 0x400 or more,
 * in its flags; no order is that large.
 */
static __always_inline u32 order_of(u32 first, u32 second)
{
	return first < second ? first : second;
}

TRACEPOINT(mm_vmscan_direct_reclaim_begin)
{
	begin_part(KOORD_INSIDE_RECLAIM, order_of(ARG(ctx, 0), ARG(ctx, 1)), false);
	return 0;
}

TRACEPOINT(mm_vmscan_direct_reclaim_end)
{
	return end_reclaim(ctx, ARG(ctx, 0));
}

TRACEPOINT(mm_vmscan_memcg_reclaim_begin)
{
	begin_part(KOORD_INSIDE_RECLAIM, order_of(ARG(ctx, 0), ARG(ctx, 1)), true);
	return 0;
}

TRACEPOINT(mm_vmscan_memcg_reclaim_end)
{
	return end_reclaim(ctx, ARG(ctx, 0));
}

/* Also sent when kswapd is awake already and gets a higher order: only the first wake of a run counts. */
TRACEPOINT(mm_vmscan_kswapd_wake)
{
	struct koord_totals *sums = get_totals();
	u32 nid = ARG(ctx, 0);

	barrier_var(nid);	/* what is checked is what is used: without it bcc's LLVM checks a copy, and the verifier refuses */
	if (!sums || nid >= KOORD_MAX_NUMA_NODES || sums->kswapd_woken_ts_ns[nid])
		return 0;
	sums->kswapd_woken_ts_ns[nid] = bpf_ktime_get_ns();
	__sync_fetch_and_add(&sums->kswapd_wakes[nid], 1);
	return 0;
}

TRACEPOINT(mm_vmscan_kswapd_sleep)
{
	struct koord_settings *set = get_settings();
	struct koord_totals *sums = get_totals();
	u32 nid = ARG(ctx, 0);
	u64 now_ns = bpf_ktime_get_ns();
	u64 delta_ns;

	barrier_var(nid);
	if (!set || !sums || nid >= KOORD_MAX_NUMA_NODES || !sums->kswapd_woken_ts_ns[nid])
		return 0;
	delta_ns = now_ns - sums->kswapd_woken_ts_ns[nid];
	sums->kswapd_woken_ts_ns[nid] = 0;
	__sync_fetch_and_add(&sums->kswapd_awake_ns[nid], delta_ns);
	if (filter_match(set, KOORD_KSWAPD, 0)) {
		struct koord_kswapd record = {
			.head = { KOORD_KSWAPD, sizeof(record), now_ns, 0 },
			.delta_ns = delta_ns,
			.nid = nid,
		};

		send_record(ctx, &record, sizeof(record));
	}
	return 0;
}
