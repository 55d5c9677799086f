/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What user space reads and writes of the CPU pass; koordebpf/events/layout.py names every field again and is checked against
 * its BTF. cgroup_id is that of a cgroup in the hierarchy that is walked.
 */
#ifndef KOORD_CPU_H
#define KOORD_CPU_H

#define KOORD_CPU_LEVELS 32	/* of cgroups; the same as koordebpf/kernel/cgroup/hierarchy.py MAX_LEVELS */

/* Key of the map `cpu_slots`, whose value is the row that a cgroup is written to. User space puts them in. */
struct koord_cpu_key {
	__u64 cgroup_id;
	__u64 hierarchy;	/* as `hierarchy` below: ids are unique within one hierarchy only */
};

/* One cgroup with its children, as of the pass of that number; an older one: the cgroup or its controller was not there. */
struct koord_cpu {
	__u64 usage_pass;
	__u64 usage_ns;
	__u64 throttle_pass;
	__u64 nr_periods;
	__u64 nr_throttled;
	__u64 throttled_ns;
};

/* One element. User space writes it before each walk from `pass` on, `path` as zeros. */
struct koord_cpu_settings {
	__u32 cpus;	/* written by the program, once */
	__u32 reserved;
	__u64 pass;
	__u64 hierarchy;
	__u64 is_v2;
	__u32 path[KOORD_CPU_LEVELS];	/* the row plus one of the last cgroup of each level; 0: it has none */
};

#endif
