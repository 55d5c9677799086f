// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * CPU time and throttling of the cgroups that user space has given a row, in one walk of a hierarchy. An object of its own,
 * loaded where it is switched on, and CO-RE only: bcc cannot build an iterator, whose context is a BTF type.
 */
#include "koord_core.h"
#include "koord_cpu.h"

#define MAX_ROWS (4 * 1024)	/* 192 KiB; 1,000 pods with three containers each */
#define MAX_CPUS 8192	/* NR_CPUS of x86-64 at most; user space makes the map as long as there are CPUs */
#define MAX_TRIES 3

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

enum cgroup_subsys_id___cpu {
	cpu_cgrp_id = 1,
	cpuacct_cgrp_id = 2,
};

/* cgroup v1: kernel/sched/cpuacct.c. A task's time is added to its cgroup and to all above. */
struct cpuacct {
	struct cgroup_subsys_state css;
	u64 *cpuusage;	/* of each CPU */
};

struct cfs_bandwidth {
	int nr_periods;
	int nr_throttled;
	u64 throttled_time;
};

struct task_group {
	struct cgroup_subsys_state css;
	struct cfs_bandwidth cfs_bandwidth;	/* with CONFIG_CFS_BANDWIDTH */
};

/* cgroup v2: include/linux/cgroup-defs.h */
struct task_cputime {
	unsigned long long sum_exec_runtime;
};

struct cgroup_base_stat {
	struct task_cputime cputime;
};

struct cgroup_rstat_base_cpu {
	struct cgroup_base_stat bstat;
	struct cgroup_base_stat last_bstat;
};

/* Before v6.16 (commit 5da3bfa029d6, "cgroup: use separate rstat trees for each subsystem"). */
struct cgroup_rstat_cpu {
	struct cgroup_base_stat bstat;
	struct cgroup_base_stat last_bstat;
};

struct cgroup___stat {
	struct cgroup_rstat_base_cpu *rstat_base_cpu;	/* of each CPU */
	struct cgroup_base_stat last_bstat;
	struct cgroup_base_stat bstat;
};

struct cgroup___rstat {
	struct cgroup_rstat_cpu *rstat_cpu;
};

/* include/linux/bpf.h */
struct bpf_array {
	void *pptrs[1];	/* of a map with elements of each CPU */
};

#pragma clang attribute pop

KEEP_TYPE(koord_cpu);

MAP_HASH(cpu_slots, struct koord_cpu_key, u32, 2 * MAX_ROWS);	/* of two hierarchies */
MAP_ARRAY(cpu_rows, struct koord_cpu, MAX_ROWS);
MAP_ARRAY(cpu_settings, struct koord_cpu_settings, 1);

/* How far a CPU's variables are from where their pointers point to: the kernel's __per_cpu_offset, which has no BTF. */
MAP_ARRAY(cpu_distances, u64, MAX_CPUS);
MAP_PERCPU_ARRAY(cpu_probe, u64, 1);

/* Adds up a u64 at `at` in an allocation of each CPU; less the one at `less`, where there is one. */
struct per_cpu_sum {
	u64 at;
	u64 less;
	u64 total;
};

static int learn_cpu(u32 cpu, struct koord_cpu_settings **set)
{
	u32 zero = 0;
	void *its = bpf_map_lookup_percpu_elem(&cpu_probe, &zero, cpu);
	u64 *distance = map_lookup(cpu_distances, &cpu), array = 0, pointer = 0, at = 0;
	const void *map = &cpu_probe;

	if (!its || !distance)
		return 1;	/* that was the last CPU */
	/* As numbers: the verifier lets no program calculate with such pointers. */
	READ_BYTES(&at, sizeof(at), &its);
	READ_BYTES(&array, sizeof(array), &map);
	READ_BYTES(&pointer, sizeof(pointer), (const void *)(array + bpf_core_field_offset(struct bpf_array, pptrs)));
	*distance = at - pointer;
	(*set)->cpus = cpu + 1;
	return 0;
}

static int add_cpu(u32 cpu, struct per_cpu_sum *sum)
{
	u64 *distance = map_lookup(cpu_distances, &cpu), value = 0, less = 0;

	if (!distance)
		return 1;
	READ_BYTES(&value, sizeof(value), (const void *)(sum->at + *distance));
	if (sum->less)
		READ_BYTES(&less, sizeof(less), (const void *)(sum->less + *distance));
	sum->total += value - less;
	return 0;
}

static __always_inline u64 sum_of_cpus(const struct koord_cpu_settings *set, u64 at, u64 less)
{
	struct per_cpu_sum sum = { at, less, 0 };

	bpf_loop(set->cpus, add_cpu, &sum, 0);
	return sum.total;
}

#define CSS(of, id)                                                                             \
	({                                                                                      \
		struct cgroup_subsys_state *__css = NULL;                                       \
		if (bpf_core_enum_value_exists(enum cgroup_subsys_id___cpu, id)) {              \
			int __id = bpf_core_enum_value(enum cgroup_subsys_id___cpu, id);        \
			bpf_core_read(&__css, sizeof(__css), &(of)->subsys[__id]);              \
		}                                                                               \
		__css;                                                                          \
	})

struct v2_usage {
	u64 usage_ns;
	u64 above_ns;	/* of it: what the cgroups above do not have yet */
};

/*
 * What cpu.stat would say, without the lock and the work of its flush, which adds up memory's statistics too before v6.16: what
 * was added up last, and what each CPU has had since.
 */
static __always_inline void read_v2(struct v2_usage *to, const struct koord_cpu_settings *set,
				     const struct cgroup *cgrp)
{
	const struct cgroup___stat *stat = (const void *)cgrp;
	const struct cgroup___rstat *old = (const void *)cgrp;
	u64 per_cpu, at, less, pending = 0, total = 0;

	if (bpf_core_field_exists(stat->rstat_base_cpu)) {
		per_cpu = (u64)READ(stat, rstat_base_cpu);
		at = bpf_core_field_offset(struct cgroup_rstat_base_cpu, bstat);
		less = bpf_core_field_offset(struct cgroup_rstat_base_cpu, last_bstat);
	} else {
		per_cpu = (u64)READ(old, rstat_cpu);
		at = bpf_core_field_offset(struct cgroup_rstat_cpu, bstat);
		less = bpf_core_field_offset(struct cgroup_rstat_cpu, last_bstat);
	}
	per_cpu += bpf_core_field_offset(struct cgroup_base_stat, cputime) +
		   bpf_core_field_offset(struct task_cputime, sum_exec_runtime);
	for (int i = 0; i < MAX_TRIES; i++) {
		total = READ(stat, bstat.cputime.sum_exec_runtime);
		pending = sum_of_cpus(set, per_cpu + at, per_cpu + less);
		if (READ(stat, bstat.cputime.sum_exec_runtime) == total)
			break;	/* nothing was added up in between */
	}
	to->usage_ns = total + pending;
	to->above_ns = to->usage_ns - READ(stat, last_bstat.cputime.sum_exec_runtime);
}

/* Gives what a cgroup has and those above have not to their rows. The topmost level has no such sum. */
static __always_inline void add_above(struct koord_cpu_settings *set, u32 level, u64 above_ns)
{
	for (u32 i = 1; i < KOORD_CPU_LEVELS; i++) {
		struct koord_cpu *row;
		u32 key;

		if (i >= level)
			break;
		key = set->path[i] - 1;
		row = map_lookup(cpu_rows, &key);	/* none at 0 - 1 */
		if (row)
			row->usage_ns += above_ns;
	}
}

SEC("iter/cgroup")
int scan_cpu(struct bpf_iter__cgroup *ctx)
{
	struct cgroup *cgrp = ctx->cgroup;
	struct koord_cpu_settings *set;
	struct cgroup_subsys_state *css;
	struct koord_cpu_key key = {};
	struct v2_usage usage = {};
	struct koord_cpu *row = NULL;
	u32 zero = 0, *slot, level;

	set = map_lookup(cpu_settings, &zero);
	if (!cgrp || !set)
		return 0;
	if (!set->cpus)
		bpf_loop(MAX_CPUS, learn_cpu, &set, 0);
	key.cgroup_id = kernfs_id(READ(cgrp, kn));
	key.hierarchy = set->hierarchy;
	slot = map_lookup(cpu_slots, &key);
	if (slot)
		row = map_lookup(cpu_rows, slot);
	if (set->is_v2) {
		level = READ(cgrp, level);
		read_v2(&usage, set, cgrp);
		add_above(set, level, usage.above_ns);
		if (level < KOORD_CPU_LEVELS)
			set->path[level] = slot ? *slot + 1 : 0;
	}
	if (!row)
		return 0;
	if (set->is_v2) {
		row->usage_ns = usage.usage_ns;
		row->usage_pass = set->pass;
	} else if ((css = CSS(cgrp, cpuacct_cgrp_id))) {
		row->usage_ns = sum_of_cpus(set, (u64)READ((struct cpuacct *)css, cpuusage), 0);
		row->usage_pass = set->pass;
	}
	css = CSS(cgrp, cpu_cgrp_id);
	if (css && HAS_FIELD(task_group, cfs_bandwidth)) {
		const struct task_group *group = (const void *)css;

		row->nr_periods = READ(group, cfs_bandwidth.nr_periods);
		row->nr_throttled = READ(group, cfs_bandwidth.nr_throttled);
		row->throttled_ns = READ(group, cfs_bandwidth.throttled_time);
		row->throttle_pass = set->pass;
	}
	return 0;
}

KEEP_LICENSE("Dual BSD/GPL");
