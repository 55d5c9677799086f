// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Victims of the kernel's OOM killer, with the memory cgroup they lived in. */
#include "koord_maps.h"

#define KILL_SIGNAL 9
#define SENT_BY_KERNEL 1	/* include/linux/sched/signal.h: SEND_SIG_PRIV */

KEEP_TYPE(koord_oom_kill);

/* Before v6.8 mark_victim tells a pid only. __oom_kill_process() sends that task its SIGKILL just before, on the same CPU. */
MAP_PERCPU_ARRAY(last_killed, struct task_struct *, 1);

TRACEPOINT(signal_generate)
{
	struct task_struct *task = (struct task_struct *)ARG(ctx, 2);
	u32 zero = 0;

	if ((int)ARG(ctx, 0) == KILL_SIGNAL && ARG(ctx, 1) == SENT_BY_KERNEL)
		map_update(last_killed, &zero, &task);
	return 0;
}

/* NULL: it was dying already, so that no signal was sent, and is not the task that could not allocate. */
static __always_inline struct task_struct *task_of_pid(int pid, struct task_struct *caller)
{
	struct task_struct **killed;
	u32 zero = 0;

	killed = map_lookup(last_killed, &zero);
	if (killed && *killed && READ(*killed, pid) == pid)
		return *killed;
	return READ(caller, pid) == pid || READ(caller, tgid) == pid ? caller : NULL;
}

/*
 * Runs in the task that could not allocate, so the limit that was hit is found from current; the victim may be another task.
 */
TRACEPOINT(mark_victim)
{
	struct task_struct *caller = (struct task_struct *)bpf_get_current_task();
	struct koord_settings *set = get_settings();
	struct task_struct *victim = NULL;
	struct koord_oom_kill record = {
		.head = { KOORD_OOM_KILL, sizeof(record), bpf_ktime_get_ns(), 0 },
	};
	struct mem_cgroup *memcg = memcg_of_task(caller);
	struct koord_limit limit;
	struct memcg_owner owner;

	if (!set)
		return 0;
	if (mark_victim_has_task())
		victim = (struct task_struct *)ARG(ctx, 0);
	else
		victim = task_of_pid((int)ARG(ctx, 0), caller);

	lookup_owner(&owner, memcg, set);
	limit = find_limit(memcg, &owner);
	record.limit_id = limit.id;
	record.is_global = limit.id == 0 || limit.is_node;
	if (victim) {
		struct mm_struct *mm = READ(victim, mm);

		lookup_owner(&owner, memcg_of_task(victim), set);
		if (owner.steps == NOT_IN_NODE) {
			count(ignored);
			return 0;
		}
		record.head.cgroup_id = owner.cgroup_id;
		record.tgid = READ(victim, tgid);
		record.total_vm_pages = READ(mm, total_vm);
		record.anon_rss_pages = RSS_PAGES(mm, MM_ANONPAGES);
		record.file_rss_pages = RSS_PAGES(mm, MM_FILEPAGES);
		record.shmem_rss_pages = RSS_PAGES(mm, MM_SHMEMPAGES);
		READ_STR(&record.comm, victim, comm);
	} else {
		record.tgid = (u32)ARG(ctx, 0);
	}
	count(oom_kills);
	if (filter_match(set, KOORD_OOM_KILL, record.head.cgroup_id))
		send_record(ctx, &record, sizeof(record));
	return 0;
}
