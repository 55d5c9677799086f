// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Says when a cgroup was throttled at its CPU quota, of those that user space names: at the end of the period, which is when the
 * kernel counts it in nr_throttled (do_sched_cfs_period_timer, kernel/sched/fair.c). There is no tracepoint for it, but for every
 * hrtimer, and the period's is one. An object of its own, and CO-RE only: it is loaded where CPU burst is on.
 */
#include "koord_core.h"

MAP_HASH(throttle_watched, u64, u32, 4096);	/* by the cgroup's id */
RING(throttled, 64 * 1024);	/* one u64 each, the cgroup's id; whole pages, which may have 64 KiB */

extern const void sched_cfs_period_timer __ksym;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct hrtimer {
	void *function;
};

struct list_head {
	struct list_head *next;
};

/* kernel/sched/sched.h */
struct cfs_bandwidth {
	struct hrtimer period_timer;
	struct list_head throttled_cfs_rq;	/* of the CPUs that wait for the next period */
};

struct task_group___throttle {
	struct cgroup_subsys_state css;
	struct cfs_bandwidth cfs_bandwidth;
};

#pragma clang attribute pop

SEC("tp_btf/hrtimer_expire_entry")
int on_period_end(u64 *ctx)
{
	const struct hrtimer *timer = (void *)ctx[0];
	const struct task_group___throttle *group;
	const void *listed;
	u64 cgroup_id;

	if (READ(timer, function) != &sched_cfs_period_timer)
		return 0;
	group = (void *)timer - bpf_core_field_offset(struct task_group___throttle, cfs_bandwidth.period_timer);
	listed = (void *)group + bpf_core_field_offset(struct task_group___throttle, cfs_bandwidth.throttled_cfs_rq);
	if (READ(group, cfs_bandwidth.throttled_cfs_rq.next) == listed)
		return 0;
	cgroup_id = kernfs_id(READ(group, css.cgroup, kn));
	/* Full: what user space has not read says enough. */
	if (map_lookup(throttle_watched, &cgroup_id))
		ring_output(ctx, throttled, &cgroup_id, sizeof(cgroup_id));
	return 0;
}

KEEP_LICENSE("Dual BSD/GPL");
