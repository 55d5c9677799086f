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
typedef _Bool bool;

enum { false = 0, true = 1 };

/* include/uapi/linux/bpf.h */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
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
};

/* struct lru_gen_struct before v6.3: only the field's name is looked up. */
struct lru_gen_folio {
	unsigned long max_seq;
	long nr_pages[1];	/* [MAX_NR_GENS][ANON_AND_FILE][MAX_NR_ZONES] */
};

struct lruvec {
	struct lru_gen_folio lrugen;	/* since v6.1, with CONFIG_LRU_GEN */
};

struct mem_cgroup_per_node {
	struct lruvec lruvec;
	unsigned long lru_zone_size[1];	/* [MAX_NR_ZONES][NR_LRU_LISTS] */
};

struct mem_cgroup {
	struct cgroup_subsys_state css;
	struct page_counter memory;
	struct mem_cgroup_per_node *nodeinfo[1];
};

struct mm_struct {
	unsigned long total_vm;
};

struct task_struct {
	int pid;
	int tgid;
	char comm[16];
	struct mm_struct *mm;
	struct css_set *cgroups;
};

/* Since v6.8 (commit 72ba14deb40a, "mm: update mark_victim tracepoints fields") the tracepoint hands over the task. */
struct trace_event_raw_mark_victim {
	u32 uid;
};

struct bpf_iter_meta;

struct bpf_iter__cgroup {
	struct bpf_iter_meta *meta;
	struct cgroup *cgroup;
};

#pragma clang attribute pop

#endif
