// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Every wait that the kernel itself counts as memory pressure (kernel/sched/psi.c): the sections between psi_memstall_enter and
 * psi_memstall_leave. They hold reclaim and compaction, and alone show refaults, swap-ins and sleeps at memory.high. They are there
 * with psi=0 too.
 */
#include "koord_stalls.h"

/* kswapd and kcompactd mark their own work so as well, though nobody waits for it. */
FUNCTION(psi_memstall_enter)
{
	struct koord_settings *set = get_settings();
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct under_way *under_way = map_lookup(begun, &tid);
	struct under_way begin = { .depth = 1 };

	if (!set)
		return 0;
	if (under_way && under_way->epoch != set->epoch) {
		drop_stall(set, tid, under_way);
		under_way = NULL;
	}
	if (under_way)
		under_way->depth++;
	else if (!is_kernel_thread((struct task_struct *)bpf_get_current_task()))
		begin_stall(set, tid, &begin, true, false);
	return 0;
}

/*
 * Only a section with no part in it is an `other` stall of its own. The time around a part is added to the same sum, so that
 * the sums make up the whole, but is none to count.
 */
FUNCTION(psi_memstall_leave)
{
	struct koord_settings *set = get_settings();
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct under_way *under_way = map_lookup(begun, &tid);
	struct koord_stall_sum *sum;
	struct koord_stall *own;
	u64 now_ns, delta_ns;
	u32 is_global;

	if (!set || !under_way || !under_way->depth)
		return 0;
	under_way->depth--;
	if (under_way->depth || (under_way->part && !under_way->part_in_section))
		return 0;
	if (under_way->part) {	/* its end was never seen, so its time is a part of `other` */
		under_way->inside |= under_way->part;
		under_way->part = 0;
		count(lost_ends);
	}
	now_ns = bpf_ktime_get_ns();
	delta_ns = now_ns - under_way->begin_ts_ns;
	own = make_stall(under_way->cgroup_id);
	if (own) {
		sum = under_way->is_global ? &own->other_global : &own->other_limit;
		if (under_way->parts_ns)
			__sync_fetch_and_add(&sum->total_ns, delta_ns - under_way->parts_ns);
		else
			add_to_sum(sum, delta_ns);
		own->last_ts_ns = now_ns;
	} else {
		count(stalls_full);
	}
	count(memstalls);
	is_global = under_way->inside & KOORD_INSIDE_RECLAIM ? under_way->part_is_global : under_way->is_global;
	send_wait(ctx, set, KOORD_MEMSTALL, under_way, now_ns, delta_ns, under_way->inside, is_global);
	end_stall(tid, under_way, own, now_ns);
	return 0;
}
