// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * How long the tasks of latency-sensitive cgroups wait for a CPU: from a wake-up, or from being preempted, to the switch to them.
 * An object of its own, and CO-RE only: it is loaded where it is switched on, since it runs with every switch of the machine.
 */
#include "koord_core.h"
#include "koord_sched.h"

#define WAITING 8192	/* slots by thread id; two threads of one slot lose a sample, as sampling does */
#define TIMED_RUNS 64
#define TASK_RUNNING 0	/* include/linux/sched.h, in every release */

KEEP_TYPE(koord_run_queue_wait);
KEEP_TYPE(koord_sched_cpu);

/* Under rq->lock nothing may be made: user space puts in the cgroups that count, everything else is passed over. */
MAP_HASH(sched_groups, u64, struct koord_sched_group, 16384);
MAP_ARRAY(sched_settings, struct koord_sched_settings, 1);
RING(sched_waits, 64 * 1024);	/* one record each `quiet_ns`; whole pages, which may have 64 KiB */

struct waiting {
	u64 since_ns;
	u64 cgroup_id;
	u32 tid;	/* 0: none */
	u32 reserved;
};

MAP_ARRAY(waiting, struct waiting, WAITING);

/* By CPU number. User space makes it as long as there are CPUs, and reads it while they write. */
MAP_ARRAY(sched_cpus, struct koord_sched_cpu, 1);

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_group___sched {
	struct cgroup_subsys_state css;
};

struct task_struct___sched {
	int pid;
	unsigned int __state;
	struct task_group___sched *sched_task_group;
};

/* Before v5.14 (commit 2f064a59a11f, "sched: Change task_struct::state"). */
struct task_struct___state {
	long state;
};

#pragma clang attribute pop

/* In the hierarchy of the cpu controller, which on cgroup v1 is not the memory controller's. 0: of an autogroup. */
static __always_inline u64 cgroup_id_of(struct task_struct___sched *task)
{
	return task->sched_task_group->css.cgroup->kn->id;
}

static __always_inline bool is_runnable(struct task_struct___sched *task)
{
	if (bpf_core_field_exists(task->__state))
		return task->__state == TASK_RUNNING;
	return ((struct task_struct___state *)task)->state == TASK_RUNNING;
}

static __always_inline struct koord_sched_settings *sched_settings_now(void)
{
	u32 zero = 0;

	return map_lookup(sched_settings, &zero);
}

static __always_inline u32 log2_us(u64 ns)
{
	u64 us = ns / 1000;
	u32 slot = 0;

	for (int shift = 16; shift; shift >>= 1) {
		if (us >> shift) {
			us >>= shift;
			slot += shift;
		}
	}
	return slot < KOORD_SCHED_SLOTS ? slot : KOORD_SCHED_SLOTS - 1;
}

/* One run of so many looks at the clock, at its begin and its end: what the programs take is known without the kernel's help. */
static __always_inline struct koord_sched_cpu *begin_run(u64 *start_ns)
{
	u32 number = bpf_get_smp_processor_id();
	struct koord_sched_cpu *cpu = map_lookup(sched_cpus, &number);

	if (cpu)
		*start_ns = ++cpu->runs % TIMED_RUNS ? 0 : bpf_ktime_get_ns();
	return cpu;
}

static __always_inline void end_run(struct koord_sched_cpu *cpu, u64 start_ns)
{
	if (!start_ns)
		return;
	cpu->timed_runs++;
	cpu->timed_ns += bpf_ktime_get_ns() - start_ns;
}

static __always_inline void begin_wait(struct koord_sched_cpu *cpu, struct task_struct___sched *task)
{
	struct koord_sched_settings *set = sched_settings_now();
	struct koord_sched_group *group;
	struct waiting *slot;
	u64 cgroup_id;
	u32 tid, at;

	if (!set || (++cpu->wakeups & set->skip_mask))
		return;
	cgroup_id = cgroup_id_of(task);
	group = map_lookup(sched_groups, &cgroup_id);
	if (!group || group->kind != KOORD_LATENCY_SENSITIVE)
		return;
	tid = task->pid;
	at = tid & (WAITING - 1);
	slot = map_lookup(waiting, &at);
	if (!slot)
		return;
	slot->cgroup_id = cgroup_id;
	slot->since_ns = bpf_ktime_get_ns();
	slot->tid = tid;
}

static __always_inline void end_wait(void *ctx, struct task_struct___sched *before, struct waiting *slot)
{
	struct koord_sched_settings *set = sched_settings_now();
	struct koord_run_queue_wait record = {};
	struct koord_sched_group *group;
	u64 now_ns = bpf_ktime_get_ns();
	u64 cgroup_id = slot->cgroup_id;
	u64 delta_ns = now_ns - slot->since_ns;

	group = map_lookup(sched_groups, &cgroup_id);
	if (!set || !group)
		return;
	__sync_fetch_and_add(&group->count, 1);
	__sync_fetch_and_add(&group->total_ns, delta_ns);
	__sync_fetch_and_add(&group->hist[log2_us(delta_ns) & (KOORD_SCHED_SLOTS - 1)], 1);
	/* Two CPUs that come in the same moment may send two. */
	if (delta_ns < set->threshold_ns || now_ns - set->sent_ns < set->quiet_ns)
		return;
	set->sent_ns = now_ns;
	record.be_cgroup_id = cgroup_id_of(before);
	group = map_lookup(sched_groups, &record.be_cgroup_id);
	if (!group || group->kind != KOORD_BEST_EFFORT)
		record.be_cgroup_id = 0;
	record.ts_ns = now_ns;
	record.cgroup_id = cgroup_id;
	record.delta_ns = delta_ns;
	record.tid = slot->tid;
	ring_output(ctx, sched_waits, &record, sizeof(record));
}

static __always_inline int on_wakeup(struct task_struct___sched *task)
{
	u64 start_ns = 0;
	struct koord_sched_cpu *cpu = begin_run(&start_ns);

	if (!cpu)
		return 0;
	begin_wait(cpu, task);
	end_run(cpu, start_ns);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int on_sched_wakeup(u64 *ctx)
{
	return on_wakeup((struct task_struct___sched *)ctx[0]);
}

SEC("tp_btf/sched_wakeup_new")
int on_sched_wakeup_new(u64 *ctx)
{
	return on_wakeup((struct task_struct___sched *)ctx[0]);
}

/* (preempt, prev, next); later releases append to it. */
SEC("tp_btf/sched_switch")
int on_sched_switch(u64 *ctx)
{
	struct task_struct___sched *before = (struct task_struct___sched *)ctx[1];
	struct task_struct___sched *next = (struct task_struct___sched *)ctx[2];
	u32 tid = next->pid, at = tid & (WAITING - 1);
	struct waiting *slot = map_lookup(waiting, &at);
	u64 start_ns = 0;
	struct koord_sched_cpu *cpu = begin_run(&start_ns);

	if (!cpu)
		return 0;
	if (slot && tid && slot->tid == tid) {
		end_wait(ctx, before, slot);
		slot->tid = 0;
	}
	if (before->pid && is_runnable(before))
		begin_wait(cpu, before);
	end_run(cpu, start_ns);
	return 0;
}

KEEP_LICENSE("Dual BSD/GPL");
