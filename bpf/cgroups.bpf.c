// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* mkdir, rmdir, rename, first and last tasks of cgroups in the memory controller's hierarchy, and moves between them. */
#include "koord_maps.h"

KEEP_TYPE(koord_cgroup);
KEEP_TYPE(koord_populated);
KEEP_TYPE(koord_migration);

/* A v1 machine has a hierarchy for each controller, and each reports its own cgroups. */
static __always_inline bool is_memory_hierarchy(struct koord_settings *set, struct cgroup *cgrp)
{
	return READ(cgrp, root, hierarchy_id) == set->hierarchy_id;
}

static __always_inline int send_cgroup(void *ctx, u32 kind, struct cgroup *cgrp)
{
	struct koord_settings *set = get_settings();
	struct cgroup_subsys_state *parent;
	struct koord_cgroup record = {};
	const char *name;
	long len;

	if (!set || !is_memory_hierarchy(set, cgrp))
		return 0;
	if (kind == KOORD_CGROUP_MKDIR)
		count(births);
	else if (kind == KOORD_CGROUP_RMDIR)
		count(deaths);
	record.head.kind = kind;
	record.head.size = sizeof(record);
	record.head.ts_ns = bpf_ktime_get_ns();
	record.head.cgroup_id = kernfs_id(READ(cgrp, kn));
	/* By kind alone: who is asked for by name has containers that are born later. */
	if (!(set->kinds & (1U << kind)))
		return 0;
	parent = READ(cgrp, self.parent);
	record.parent_id = parent ? kernfs_id(READ(parent, cgroup, kn)) : 0;
	record.level = READ(cgrp, level);
	name = READ(cgrp, kn, name);
	len = READ_STRING(record.name, sizeof(record.name), name);
	record.name_cut = len < 0 || len == sizeof(record.name);
	send_record(ctx, &record, sizeof(record));
	return 0;
}

TRACEPOINT(cgroup_mkdir)
{
	return send_cgroup(ctx, KOORD_CGROUP_MKDIR, (struct cgroup *)ARG(ctx, 0));
}

TRACEPOINT(cgroup_rmdir)
{
	return send_cgroup(ctx, KOORD_CGROUP_RMDIR, (struct cgroup *)ARG(ctx, 0));
}

TRACEPOINT(cgroup_rename)
{
	return send_cgroup(ctx, KOORD_CGROUP_RENAME, (struct cgroup *)ARG(ctx, 0));
}

/* It reports each ancestor that changes with the cgroup. */
TRACEPOINT(cgroup_notify_populated)
{
	struct cgroup *cgrp = (struct cgroup *)ARG(ctx, 0);
	struct koord_settings *set = get_settings();
	struct koord_populated record = {
		.head = { KOORD_POPULATED, sizeof(record), bpf_ktime_get_ns(), 0 },
	};

	if (!set || !is_memory_hierarchy(set, cgrp))
		return 0;
	count(populated);
	record.head.cgroup_id = kernfs_id(READ(cgrp, kn));
	record.populated = (int)ARG(ctx, 2) != 0;
	record.level = READ(cgrp, level);
	if (filter_match(set, KOORD_POPULATED, record.head.cgroup_id))
		send_record(ctx, &record, sizeof(record));
	return 0;
}

static __always_inline int send_migration(void *ctx, struct cgroup *to, struct task_struct *task, u32 threadgroup)
{
	struct koord_settings *set = get_settings();
	struct koord_migration record = {
		.head = { KOORD_MIGRATION, sizeof(record), bpf_ktime_get_ns(), 0 },
		.threadgroup = threadgroup,
	};

	if (!set || !is_memory_hierarchy(set, to))
		return 0;
	count(migrations);
	record.head.cgroup_id = kernfs_id(READ(to, kn));
	if (!filter_match(set, KOORD_MIGRATION, record.head.cgroup_id))
		return 0;
	record.pid = READ(task, pid);
	READ_STR(&record.comm, task, comm);
	send_record(ctx, &record, sizeof(record));
	return 0;
}

/* Once for each write to cgroup.procs or cgroup.threads; a task that is born in a cgroup was not moved. */
TRACEPOINT(cgroup_attach_task)
{
	return send_migration(ctx, (struct cgroup *)ARG(ctx, 0), (struct task_struct *)ARG(ctx, 2), ARG(ctx, 3) & 1);
}

/* cgroup v1: all tasks of a cpuset without CPUs go to its parent. */
TRACEPOINT(cgroup_transfer_tasks)
{
	return send_migration(ctx, (struct cgroup *)ARG(ctx, 0), (struct task_struct *)ARG(ctx, 2), ARG(ctx, 3) & 1);
}
