// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Every wait that the kernel itself counts as memory pressure (kernel/sched/psi.c): the sections between psi_memstall_enter and
 * psi_memstall_leave. They hold reclaim and compaction, and alone show refaults, swap-ins and sleeps at memory.high. They are there
 * with psi=0 too.
 */
#include "koord_stalls.h"

/* kswapd and kcompactd mark their own work so as well, though no task waits for it. */
FUNCTION(psi_memstall_enter)
{
	struct koord_settings *set = get_settings();
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct stall_ctx *cur = map_lookup(start, &tid);
	struct stall_ctx begin = { .depth = 1 };

	if (!set)
		return 0;
	if (cur && cur->epoch != set->epoch) {
		drop_stall(set, tid, cur);
		cur = NULL;
	}
	if (cur)
		cur->depth++;
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
	struct stall_ctx *cur = map_lookup(start, &tid);
	struct koord_stall_sum *sum;
	struct koord_stall *own;
	u64 now_ns, delta_ns;
	u32 is_global;

	if (!set || !cur || !cur->depth)
		return 0;
	cur->depth--;
	if (cur->depth || (cur->part && !cur->part_in_section))
		return 0;
	if (cur->part) {	/* its end was never seen, so its time is a part of `other` */
		cur->inside |= cur->part;
		cur->part = 0;
		count(lost_ends);
	}
	now_ns = bpf_ktime_get_ns();
	delta_ns = now_ns - cur->begin_ts_ns;
	own = make_stall(cur->cgroup_id);
	if (own) {
		sum = cur->is_global ? &own->other_global : &own->other_limit;
		if (cur->parts_ns)
			__sync_fetch_and_add(&sum->total_ns, delta_ns - cur->parts_ns);
		else
			add_to_sum(sum, delta_ns);
		own->last_ts_ns = now_ns;
	} else {
		count(stalls_full);
	}
	count(memstalls);
	is_global = cur->inside & KOORD_INSIDE_RECLAIM ? cur->part_is_global : cur->is_global;
	send_wait(ctx, set, KOORD_MEMSTALL, cur, now_ns, delta_ns, cur->inside, is_global);
	end_stall(tid, cur, own, now_ns);
	return 0;
}
