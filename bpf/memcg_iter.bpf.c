// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Usage and LRU sizes of every memory cgroup below one, in one pass into a map that user space has mapped. */
#include "koord_maps.h"

#define MAX_MEMCGS 16384	/* 1.2 MB; ten times the cgroups of a node with 500 pods */
#define NR_LRU_LISTS 5		/* include/linux/mmzone.h, the same in every release */
#define MAX_NR_ZONES 6		/* include/linux/mmzone.h has at most six */
#define MAX_NR_GENS 4		/* include/linux/mmzone.h, the same in every release */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_MEMCGS);
	__type(key, u32);
	__type(value, struct koord_memcg);
} memcgs SEC(".maps");

const struct koord_memcg *unused_memcg __attribute__((unused));

/*
 * lru_zone_size is exact at once; vmstats lag behind until somebody flushes rstat, and their index changed in v6.10.
 */
static __always_inline void add_lru(struct koord_memcg *row, struct mem_cgroup *memcg, u32 nid)
{
	unsigned long sizes[MAX_NR_ZONES * NR_LRU_LISTS] = {};
	struct mem_cgroup_per_node *info = NULL;
	u32 bytes = bpf_core_field_size(info->lru_zone_size);

	if (bpf_core_read(&info, sizeof(info), &memcg->nodeinfo[nid]) || !info)
		return;
	if (bytes > sizeof(sizes))
		bytes = sizeof(sizes);
	if (bpf_core_read(sizes, bytes, &info->lru_zone_size))
		return;
	for (int zone = 0; zone < MAX_NR_ZONES; zone++)
		for (int lru = 0; lru < NR_LRU_LISTS; lru++)
			row->lru_pages[lru] += sizes[zone * NR_LRU_LISTS + lru];
}

/*
 * With the multi-generational LRU (/sys/kernel/mm/lru_gen/enabled) only unevictable pages stand in lru_zone_size. As in
 * memory.stat, the two youngest generations are the active ones (include/linux/mm_inline.h lru_gen_is_active).
 */
static __always_inline void add_generations(struct koord_memcg *row, struct mem_cgroup *memcg, u32 nid)
{
	long sizes[2 * MAX_NR_ZONES] = {};	/* of one generation: anon by zone, then file by zone */
	struct mem_cgroup_per_node *info = NULL;
	const char *from;
	u32 bytes, zones;
	u64 max_seq;

	if (!bpf_core_field_exists(info->lruvec.lrugen))
		return;
	bytes = bpf_core_field_size(info->lruvec.lrugen.nr_pages) / MAX_NR_GENS;
	zones = bytes / (2 * sizeof(sizes[0]));
	if (bytes > sizeof(sizes))
		return;
	if (bpf_core_read(&info, sizeof(info), &memcg->nodeinfo[nid]) || !info)
		return;
	max_seq = BPF_CORE_READ(info, lruvec.lrugen.max_seq);
	from = (const char *)&info->lruvec.lrugen.nr_pages;
	for (u32 generation = 0; generation < MAX_NR_GENS; generation++) {
		u32 is_active = ((max_seq - generation) & (MAX_NR_GENS - 1)) < 2;

		if (bpf_probe_read_kernel(sizes, bytes, from + generation * bytes))
			return;
		for (u32 i = 0; i < 2 * MAX_NR_ZONES; i++) {
			u32 lru = (i >= zones) * 2 + is_active;

			barrier_var(lru);	/* the mask stays: the verifier of 6.1 loses the range of a sum */
			row->lru_pages[lru & 3] += sizes[i];
		}
	}
}

SEC("iter/cgroup")
int scan_memcgs(struct bpf_iter__cgroup *ctx)
{
	int ssid = bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);
	struct koord_settings *set = get_settings();
	struct cgroup_subsys_state *css = NULL;
	struct cgroup *cgrp = ctx->cgroup;
	struct mem_cgroup *memcg;
	struct koord_memcg *row;
	u32 key;

	if (!cgrp || !set)
		return 0;
	bpf_core_read(&css, sizeof(css), &cgrp->subsys[ssid]);
	if (!css)
		return 0;	/* v2: the controller is not enabled down here */
	memcg = (struct mem_cgroup *)css;
	key = set->memcgs;
	row = bpf_map_lookup_elem(&memcgs, &key);
	if (!row) {
		set->memcgs_full++;
		return 0;
	}
	set->memcgs = key + 1;
	row->cgroup_id = BPF_CORE_READ(cgrp, kn, id);
	row->parent_id = BPF_CORE_READ(cgrp, self.parent, cgroup, kn, id);
	row->usage_pages = BPF_CORE_READ(memcg, memory.usage.counter);
	row->max_pages = BPF_CORE_READ(memcg, memory.max);
	__builtin_memset(row->lru_pages, 0, sizeof(row->lru_pages));
	for (u32 nid = 0; nid < KOORD_MAX_NUMA_NODES && nid < set->numa_nodes; nid++) {
		add_lru(row, memcg, nid);
		add_generations(row, memcg, nid);
	}
	/* The kernel moves pages between generations in batches: one may be below zero for a moment. */
	for (int lru = 0; lru < NR_LRU_LISTS; lru++)
		if ((long long)row->lru_pages[lru] < 0)
			row->lru_pages[lru] = 0;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
