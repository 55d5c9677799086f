// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Waits beside reclaim itself: tasks that compact memory for a large block, and sleeps that reclaim puts a task to. */
#include "koord_stalls.h"

KEEP_TYPE(koord_wait);

/* kcompactd does it for others and no task waits. */
TRACEPOINT(mm_compaction_begin)
{
	if (!is_kernel_thread((struct task_struct *)bpf_get_current_task()))
		begin_part(KOORD_INSIDE_COMPACTION, 0, false);
	return 0;
}

TRACEPOINT(mm_compaction_end)
{
	u32 status = ARG(ctx, 4);
	struct koord_settings *set = get_settings();
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct stall_ctx *cur = map_lookup(start, &tid);
	u64 now_ns = bpf_ktime_get_ns();
	struct koord_stall *own;
	u64 delta_ns;

	barrier_var(status);	/* else one load from a computed address, which the verifier refuses */
	if (!compaction_has_control())
		status = ARG(ctx, 5);
	if (!set || !cur || cur->part != KOORD_INSIDE_COMPACTION) {
		if (!is_kernel_thread((struct task_struct *)bpf_get_current_task()))
			count(unmatched_ends);
		return 0;
	}
	delta_ns = end_part(cur, now_ns);
	own = make_stall(cur->cgroup_id);
	if (own) {
		add_to_sum(&own->compaction, delta_ns);
		own->last_ts_ns = now_ns;
	} else {
		count(stalls_full);
	}
	count(compactions);
	send_wait(ctx, set, KOORD_COMPACTION, cur, now_ns, delta_ns, status, cur->part_is_global);
	end_stall(tid, cur, own, now_ns);
	return 0;
}

/* Since v5.16. It comes after the sleep, in jiffies, and always within reclaim or compaction, whose time holds it already. */
TRACEPOINT(mm_vmscan_throttled)
{
	struct koord_settings *set = get_settings();
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct stall_ctx *cur;
	u64 delta_ns = (u64)(u32)ARG(ctx, 2) * 1000;
	struct koord_stall *own;
	u64 now_ns;

	if (!set || is_kernel_thread((struct task_struct *)bpf_get_current_task()))
		return 0;
	cur = map_lookup(start, &tid);
	if (!cur) {
		count(unmatched_ends);
		return 0;
	}
	now_ns = bpf_ktime_get_ns();
	cur->inside |= KOORD_INSIDE_THROTTLED;
	own = make_stall(cur->cgroup_id);
	if (own) {
		add_to_sum(&own->throttled, delta_ns);
		own->last_ts_ns = now_ns;
	} else {
		count(stalls_full);
	}
	count(throttles);
	send_wait(ctx, set, KOORD_THROTTLED, cur, now_ns, delta_ns, ARG(ctx, 3), cur->part_is_global);
	return 0;
}
