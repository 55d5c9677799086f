// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Victims of the kernel's OOM killer, with the memory cgroup they lived in. */
#include "koord_maps.h"

#define SIGKILL 9
#define SEND_SIG_PRIV 1	/* include/linux/sched/signal.h: the kernel itself sends it */

const struct koord_oom_kill *unused_oom_kill __attribute__((unused));

/* Before v6.8 mark_victim tells a pid only. __oom_kill_process() sends that task its SIGKILL just before, on the same CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct task_struct *);
} last_killed SEC(".maps");

SEC("raw_tp/signal_generate")
int on_signal_generate(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx->args[2];
	u32 zero = 0;

	if ((int)ctx->args[0] == SIGKILL && ctx->args[1] == SEND_SIG_PRIV)
		bpf_map_update_elem(&last_killed, &zero, &task, BPF_ANY);
	return 0;
}

/* NULL: it was dying already, so that no signal was sent, and is not the task that could not allocate. */
static __always_inline struct task_struct *task_of_pid(int pid, struct task_struct *current)
{
	struct task_struct **killed;
	u32 zero = 0;

	killed = bpf_map_lookup_elem(&last_killed, &zero);
	if (killed && *killed && BPF_CORE_READ(*killed, pid) == pid)
		return *killed;
	return BPF_CORE_READ(current, pid) == pid || BPF_CORE_READ(current, tgid) == pid ? current : NULL;
}

/*
 * Runs in the task that could not allocate, so the limit that was hit is found from current; the victim may be another task.
 */
SEC("raw_tp/mark_victim")
int on_mark_victim(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *current = (struct task_struct *)bpf_get_current_task();
	struct koord_settings *set = get_settings();
	struct task_struct *victim = NULL;
	struct koord_oom_kill record = {
		.head = { KOORD_OOM_KILL, sizeof(record), bpf_ktime_get_ns(), 0 },
	};
	struct koord_limit limit;

	if (!set)
		return 0;
	if (bpf_core_field_exists(struct trace_event_raw_mark_victim, uid))
		victim = (struct task_struct *)ctx->args[0];
	else
		victim = task_of_pid((int)ctx->args[0], current);

	limit = find_limit(memcg_of_task(current), set->node_cgroup_id);
	record.limit_id = limit.id;
	record.is_global = limit.id == 0 || limit.is_node;
	if (victim) {
		struct koord_limit own = find_limit(memcg_of_task(victim), set->node_cgroup_id);

		if (!own.in_node) {
			count(ignored);
			return 0;
		}
		record.head.cgroup_id = BPF_CORE_READ(memcg_of_task(victim), css.cgroup, kn, id);
		record.tgid = BPF_CORE_READ(victim, tgid);
		record.total_vm_pages = BPF_CORE_READ(victim, mm, total_vm);
		BPF_CORE_READ_STR_INTO(&record.comm, victim, comm);
	} else {
		record.tgid = (u32)ctx->args[0];
	}
	count(oom_kills);
	send_record(&record);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
