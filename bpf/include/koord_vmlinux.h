/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The fields of kernel types that the programs touch; CO-RE moves each to where the running kernel keeps it. A generated
 * vmlinux.h is 2.8 MB and ties the build to one kernel's.
 */
#ifndef KOORD_VMLINUX_H
#define KOORD_VMLINUX_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s64 s64;
typedef _Bool bool;

enum { false = 0, true = 1 };

/* include/uapi/linux/bpf.h */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_MMAPABLE = 1 << 10,
};

struct bpf_raw_tracepoint_args {
	__u64 args[0];
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	long counter;
} atomic_long_t;

/* kernel/cgroup: subsystem ids depend on the configuration, so the value below is relocated too. */
enum cgroup_subsys_id {
	memory_cgrp_id = 4,
};

struct kernfs_node {
	const char *name;
	u64 id;
};

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
	u64 serial_nr;
};

struct cgroup_root {
	int hierarchy_id;
};

struct cgroup {
	struct cgroup_subsys_state self;
	int level;
	struct kernfs_node *kn;
	struct cgroup_subsys_state *subsys[1];
	struct cgroup_root *root;
};

struct css_set {
	struct cgroup_subsys_state *subsys[1];
};

struct page_counter {
	atomic_long_t usage;
	unsigned long high;	/* since v5.8; struct mem_cgroup had it before */
	unsigned long max;
	struct page_counter *parent;
};

/* include/linux/memcontrol.h */
enum memcg_memory_event {
	MEMCG_HIGH = 1,	/* then MEMCG_MAX, MEMCG_OOM, MEMCG_OOM_KILL, in every release since v4.19 */
};

/* struct lru_gen_struct before v6.3: only the field's name is looked up. */
struct lru_gen_folio {
	unsigned long max_seq;
	long nr_pages[1];	/* [MAX_NR_GENS][ANON_AND_FILE][MAX_NR_ZONES] */
};

struct lruvec {
	struct lru_gen_folio lrugen;	/* since v6.1, with CONFIG_LRU_GEN */
};

struct lruvec_stats {
	long state[1];	/* children included; NR_SLAB_RECLAIMABLE_B follows the LRU lists in every release since v5.9 */
};

struct mem_cgroup_per_node {
	struct lruvec lruvec;
	unsigned long lru_zone_size[1];	/* [MAX_NR_ZONES][NR_LRU_LISTS] */
	struct lruvec_stats *lruvec_stats;	/* since v6.10 */
};

/* Before v6.10 (commit 70a64b7919cb, "memcg: dynamically allocate lruvec_stats"). */
struct mem_cgroup_per_node___inside {
	struct lruvec_stats lruvec_stats;
};

/*
 * An array of arrays is one long array in the BTF of 6.18 and before, and what it is in C in that of 7.2: a newer pahole
 * made it. libbpf tells the two apart, so such a field is looked up in either form.
 */
struct lru_gen_folio___nested {
	long nr_pages[1][1][1];
};

struct lruvec___nested {
	struct lru_gen_folio___nested lrugen;
};

struct mem_cgroup_per_node___nested {
	struct lruvec___nested lruvec;
	unsigned long lru_zone_size[1][1];
};

struct mem_cgroup {
	struct cgroup_subsys_state css;
	struct page_counter memory;
	struct page_counter swap;	/* cgroup v2; in a union with memsw */
	struct page_counter memsw;	/* cgroup v1: memory and swap */
	atomic_long_t memory_events[5];
	struct mem_cgroup_per_node *nodeinfo[1];
};

/* include/linux/mm_types_task.h */
enum { MM_FILEPAGES, MM_ANONPAGES, MM_SWAPENTS, MM_SHMEMPAGES, NR_MM_COUNTERS };

struct percpu_counter {
	s64 count;
};

struct mm_struct {
	unsigned long total_vm;
	struct percpu_counter rss_stat[NR_MM_COUNTERS];
};

/* Before v6.2 (commit f1a7941243c1, "mm: convert mm's rss stats into percpu_counter"). */
struct mm_rss_stat {
	atomic_long_t count[NR_MM_COUNTERS];
};

struct mm_struct___shared {
	struct mm_rss_stat rss_stat;
};

/* Not only declared: two types are compared by their kinds. */
struct compact_control {
	int order;
};

struct task_struct {
	unsigned int flags;
	int pid;
	int tgid;
	char comm[16];
	struct mm_struct *mm;
	unsigned in_memstall : 1;	/* with CONFIG_PSI */
	struct css_set *cgroups;
};

/* Since v6.8 (commit 72ba14deb40a, "mm: update mark_victim tracepoints fields") the tracepoint hands over the task. */
struct trace_event_raw_mark_victim {
	u32 uid;
};

/* Before, three numbers stood where the control stands. */
typedef void (*btf_trace_mm_compaction_end___control)(void *, struct compact_control *, unsigned long, unsigned long, bool, int);

struct bpf_iter_meta;

struct bpf_iter__cgroup {
	struct bpf_iter_meta *meta;
	struct cgroup *cgroup;
};

#pragma clang attribute pop

#endif
