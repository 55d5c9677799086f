// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Births, deaths and renames of cgroups in the memory controller's hierarchy. */
#include "koord_maps.h"

const struct koord_cgroup *unused_cgroup __attribute__((unused));

static __always_inline int send_cgroup(u32 kind, struct cgroup *cgrp)
{
	struct koord_settings *set = get_settings();
	struct cgroup_subsys_state *parent;
	struct koord_cgroup record = {};
	const char *name;
	long len;

	if (!set || BPF_CORE_READ(cgrp, root, hierarchy_id) != set->hierarchy_id)
		return 0;
	record.head.kind = kind;
	record.head.size = sizeof(record);
	record.head.ts_ns = bpf_ktime_get_ns();
	record.head.cgroup_id = BPF_CORE_READ(cgrp, kn, id);
	parent = BPF_CORE_READ(cgrp, self.parent);
	record.parent_id = parent ? BPF_CORE_READ(parent, cgroup, kn, id) : 0;
	record.level = BPF_CORE_READ(cgrp, level);
	name = BPF_CORE_READ(cgrp, kn, name);
	len = bpf_probe_read_kernel_str(record.name, sizeof(record.name), name);
	record.name_cut = len < 0 || len == sizeof(record.name);
	send_record(&record);
	return 0;
}

SEC("raw_tp/cgroup_mkdir")
int on_cgroup_mkdir(struct bpf_raw_tracepoint_args *ctx)
{
	count(births);
	return send_cgroup(KOORD_CGROUP_MKDIR, (struct cgroup *)ctx->args[0]);
}

SEC("raw_tp/cgroup_rmdir")
int on_cgroup_rmdir(struct bpf_raw_tracepoint_args *ctx)
{
	count(deaths);
	return send_cgroup(KOORD_CGROUP_RMDIR, (struct cgroup *)ctx->args[0]);
}

SEC("raw_tp/cgroup_rename")
int on_cgroup_rename(struct bpf_raw_tracepoint_args *ctx)
{
	return send_cgroup(KOORD_CGROUP_RENAME, (struct cgroup *)ctx->args[0]);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
