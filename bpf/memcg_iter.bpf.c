// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Usage, swap, events, LRU sizes and reclaimable slab of every memory cgroup below one, in one pass into maps that user
 * space has mapped. CO-RE only: bcc cannot build an iterator, whose context is a BTF type; there the files are read.
 */
#include "koord_maps.h"

#define MAX_MEMCGS 16384	/* 1.9 MiB; ten times the cgroups of a node with 500 pods */
#define NR_LRU_LISTS 5		/* include/linux/mmzone.h, the same in every release */
#define NR_SLAB_RECLAIMABLE_AT NR_LRU_LISTS	/* in lruvec_stats.state: mm/memcontrol.c memcg_node_stat_items */
#define MIN_REST_BYTES (8ULL << 20)	/* what any pod has */
#define MAX_NR_ZONES 6		/* include/linux/mmzone.h has at most six */
#define MAX_NR_GENS 4		/* include/linux/mmzone.h, the same in every release */

MAP_ARRAY(memcgs, struct koord_memcg, MAX_MEMCGS);

KEEP_TYPE(koord_memcg);

/*
 * lru_zone_size is exact at once; vmstats lag behind until rstat is flushed, and their index changed in v6.10.
 */
static __always_inline void add_lru(u64 *pages, const struct mem_cgroup_per_node *info)
{
	const struct mem_cgroup_per_node___nested *nested = (const void *)info;
	unsigned long sizes[MAX_NR_ZONES * NR_LRU_LISTS] = {};
	const void *from;
	u32 bytes;

	if (bpf_core_field_exists(nested->lru_zone_size)) {
		bytes = bpf_core_field_size(nested->lru_zone_size);
		from = &nested->lru_zone_size;
	} else {
		bytes = bpf_core_field_size(info->lru_zone_size);
		from = &info->lru_zone_size;
	}
	if (bytes > sizeof(sizes))
		bytes = sizeof(sizes);
	if (READ_BYTES(sizes, bytes, from))
		return;
	for (int zone = 0; zone < MAX_NR_ZONES; zone++)
		for (int lru = 0; lru < NR_LRU_LISTS; lru++)
			pages[lru] += sizes[zone * NR_LRU_LISTS + lru];
}

/*
 * With the multi-generational LRU (/sys/kernel/mm/lru_gen/enabled) only unevictable pages stand in lru_zone_size. As in
 * memory.stat, the two youngest generations are the active ones (include/linux/mm_inline.h lru_gen_is_active).
 */
static __always_inline void add_generations(u64 *pages, const struct mem_cgroup_per_node *info)
{
	const struct mem_cgroup_per_node___nested *nested = (const void *)info;
	long sizes[2 * MAX_NR_ZONES] = {};	/* of one generation: anon by zone, then file by zone */
	const char *from;
	u32 bytes, zones;
	u64 max_seq;

	if (!HAS_FIELD(mem_cgroup_per_node, lruvec.lrugen))
		return;
	if (bpf_core_field_exists(nested->lruvec.lrugen.nr_pages)) {
		bytes = bpf_core_field_size(nested->lruvec.lrugen.nr_pages) / MAX_NR_GENS;
		from = (const char *)&nested->lruvec.lrugen.nr_pages;
	} else {
		bytes = bpf_core_field_size(info->lruvec.lrugen.nr_pages) / MAX_NR_GENS;
		from = (const char *)&info->lruvec.lrugen.nr_pages;
	}
	zones = bytes / (2 * sizeof(sizes[0]));
	if (bytes > sizeof(sizes))
		return;
	max_seq = READ(info, lruvec.lrugen.max_seq);
	for (u32 generation = 0; generation < MAX_NR_GENS; generation++) {
		u32 is_active = ((max_seq - generation) & (MAX_NR_GENS - 1)) < 2;

		if (READ_BYTES(sizes, bytes, from + generation * bytes))
			return;
		for (u32 i = 0; i < 2 * MAX_NR_ZONES; i++) {
			u32 lru = (i >= zones) * 2 + is_active;

			barrier_var(lru);	/* the mask stays: the verifier of 6.1 loses the range of a sum */
			pages[lru & 3] += sizes[i];
		}
	}
}

/*
 * One cgroup's reclaimable slab on one node, with its children's. What the kernel added up last: every two seconds, and when
 * a task reads memory.stat.
 */
static __always_inline u64 slab_reclaimable(const struct mem_cgroup_per_node *info)
{
	const struct mem_cgroup_per_node___inside *inside = (const void *)info;
	const long *state = NULL;
	long bytes = 0;

	if (bpf_core_field_exists(info->lruvec_stats)) {
		const struct lruvec_stats *stats = READ(info, lruvec_stats);

		if (stats)
			state = stats->state;
	} else if (bpf_core_field_exists(inside->lruvec_stats)) {
		state = inside->lruvec_stats.state;
	}
	if (!state || READ_BYTES(&bytes, sizeof(bytes), &state[NR_SLAB_RECLAIMABLE_AT]))
		return KOORD_NOT_KNOWN;
	return bytes < 0 ? 0 : bytes;	/* of one node alone it may be below zero for a moment */
}

struct lru_sizes {
	u64 pages[NR_LRU_LISTS];
};

/*
 * One cgroup's LRU lists on one node. Global, so that the verifier walks it once and not for each node: 7.2 counts 640,000
 * instructions otherwise, of the million that a program may have. So `info` is a number to it.
 */
__noinline int read_node(u64 info, struct lru_sizes *sizes)
{
	if (!sizes)
		return 0;
	__builtin_memset(sizes, 0, sizeof(*sizes));
	add_lru(sizes->pages, (const void *)info);
	add_generations(sizes->pages, (const void *)info);
	/* The kernel moves pages between generations in batches: one may be below zero for a moment. */
	for (int lru = 0; lru < NR_LRU_LISTS; lru++)
		sizes->pages[lru] &= ~((s64)sizes->pages[lru] >> 63);
	return 0;
}

/* Of a cgroup whose own lists leave so much of its usage over that it matters: a pod's, or a hog of kernel memory. */
static __always_inline void add_slab(struct koord_settings *set, struct mem_cgroup *memcg, struct koord_memcg *row)
{
	u64 listed = 0, slab = 0;

	for (int lru = 0; lru < NR_LRU_LISTS; lru++)
		listed += row->lru_pages[lru];
	row->slab_reclaimable_bytes = KOORD_NOT_KNOWN;
	if (row->usage_pages < listed + (MIN_REST_BYTES >> set->page_shift))
		return;
	for (u32 nid = 0; nid < KOORD_MAX_NUMA_NODES && nid < set->numa_nodes; nid++) {
		struct mem_cgroup_per_node *info = NULL;
		u64 bytes;

		if (bpf_core_read(&info, sizeof(info), &memcg->nodeinfo[nid]) || !info)
			continue;
		bytes = slab_reclaimable(info);
		if (bytes == KOORD_NOT_KNOWN)
			return;
		slab += bytes;
	}
	row->slab_reclaimable_bytes = slab;
}

SEC("iter/cgroup")
int scan_memcgs(struct bpf_iter__cgroup *ctx)
{
	struct koord_settings *set = get_settings();
	struct cgroup_subsys_state *css;
	struct cgroup *cgrp = ctx->cgroup;
	struct mem_cgroup *memcg;
	struct koord_memcg *row;
	u32 key;

	if (!cgrp || !set)
		return 0;
	css = MEMORY_CSS(cgrp);
	if (!css)
		return 0;	/* v2: the controller is not enabled down here */
	memcg = (struct mem_cgroup *)css;
	key = set->memcgs;
	row = map_lookup(memcgs, &key);
	if (!row) {
		set->memcgs_full++;
		return 0;
	}
	set->memcgs = key + 1;
	row->cgroup_id = kernfs_id(READ(cgrp, kn));
	row->parent_id = kernfs_id(READ(cgrp, self.parent, cgroup, kn));
	row->usage_pages = READ(memcg, memory.usage.counter);
	row->max_pages = READ(memcg, memory.max);
	if (set->hierarchy_id == 0) {
		row->swap_pages = READ(memcg, swap.usage.counter);
	} else {
		u64 both = READ(memcg, memsw.usage.counter);

		row->swap_pages = both > row->usage_pages ? both - row->usage_pages : 0;
	}
	bpf_core_read(row->events, sizeof(row->events), &memcg->memory_events[MEMCG_HIGH]);
	__builtin_memset(row->lru_pages, 0, sizeof(row->lru_pages));
	for (u32 nid = 0; nid < KOORD_MAX_NUMA_NODES && nid < set->numa_nodes; nid++) {
		struct mem_cgroup_per_node *info = NULL;
		struct lru_sizes sizes;

		if (bpf_core_read(&info, sizeof(info), &memcg->nodeinfo[nid]) || !info)
			continue;
		read_node((u64)info, &sizes);
		for (int lru = 0; lru < NR_LRU_LISTS; lru++)
			row->lru_pages[lru] += sizes.pages[lru];
	}
	add_slab(set, memcg, row);
	return 0;
}
