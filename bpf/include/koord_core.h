/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The words the programs are written in, as CO-RE has them: libbpf moves every field to where the running kernel's BTF says it
 * is. koord_bcc.h gives the same words over bcc's tables and the headers of one kernel.
 */
#ifndef KOORD_CORE_H
#define KOORD_CORE_H

#include "koord_vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* Maps. Arrays can be mapped into user space. */
#define MAP_HASH(name, key_type, value_type, entries)      \
	struct {                                           \
		__uint(type, BPF_MAP_TYPE_HASH);           \
		__uint(max_entries, entries);              \
		__type(key, key_type);                     \
		__type(value, value_type);                 \
	} name SEC(".maps")

/* Full: the least recently used element is dropped. */
#define MAP_LRU_HASH(name, key_type, value_type, entries)  \
	struct {                                           \
		__uint(type, BPF_MAP_TYPE_LRU_HASH);       \
		__uint(max_entries, entries);              \
		__type(key, key_type);                     \
		__type(value, value_type);                 \
	} name SEC(".maps")

#define MAP_ARRAY(name, value_type, entries)               \
	struct {                                           \
		__uint(type, BPF_MAP_TYPE_ARRAY);          \
		__uint(map_flags, BPF_F_MMAPABLE);         \
		__uint(max_entries, entries);              \
		__type(key, u32);                          \
		__type(value, value_type);                 \
	} name SEC(".maps")

#define MAP_PERCPU_ARRAY(name, value_type, entries)        \
	struct {                                           \
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);   \
		__uint(max_entries, entries);              \
		__type(key, u32);                          \
		__type(value, value_type);                 \
	} name SEC(".maps")

#define RING(name, bytes)                                  \
	struct {                                           \
		__uint(type, BPF_MAP_TYPE_RINGBUF);        \
		__uint(max_entries, bytes);                \
	} name SEC(".maps")

#define map_lookup(map, key) bpf_map_lookup_elem(&map, key)
#define map_update(map, key, value) bpf_map_update_elem(&map, key, value, BPF_ANY)	/* 0: it is in */
#define map_insert(map, key, value) bpf_map_update_elem(&map, key, value, BPF_NOEXIST)	/* 0: it is in, and was not */
#define map_delete(map, key) bpf_map_delete_elem(&map, key)
#define ring_output(ctx, ring, record, bytes) bpf_ringbuf_output(&ring, record, bytes, 0)	/* 0: sent */

/* libbpf keeps a type in the object's BTF, for user space to check, only where something refers to it. */
#define KEEP_TYPE(name) const struct name *unused_##name __attribute__((unused))
#define KEEP_LICENSE(name) char LICENSE[] SEC("license") = name

/*
 * The head of a program, named on_<tracepoint>; the tracepoint's arguments are those of its TP_PROTO. The same program may
 * be loaded as a BTF tracepoint's, whose context is alike.
 */
#define TRACEPOINT(name)             \
	SEC("raw_tp/" #name)         \
	int on_##name(struct bpf_raw_tracepoint_args *ctx)
#define ARG(ctx, i) ((ctx)->args[i])

/* The head of a program that runs where a kernel function begins. Its arguments are not available, so that
 * fentry serves as well as a kprobe. */
#define FUNCTION(name)               \
	SEC("kprobe/" #name)         \
	int on_##name(void *ctx)

/* READ(p, a, b.c, d) is p->a->b.c->d. */
#define READ(p, ...) BPF_CORE_READ(p, __VA_ARGS__)
#define READ_STR(to, p, ...) BPF_CORE_READ_STR_INTO(to, p, __VA_ARGS__)
#define READ_BYTES(to, bytes, from) bpf_probe_read_kernel(to, bytes, from)
#define READ_STRING(to, bytes, from) bpf_probe_read_kernel_str(to, bytes, from)

/* Whether the running kernel's struct `type` has `field`. Code that reads it may stand behind this only in CO-RE. */
#define HAS_FIELD(type, field) bpf_core_field_exists(((struct type *)0)->field)

/* The memory controller's state of a struct cgroup or css_set. */
#define MEMORY_CSS(of)                                                                      \
	({                                                                                  \
		struct cgroup_subsys_state *__css = NULL;                                   \
		int __id = bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);      \
		bpf_core_read(&__css, sizeof(__css), &(of)->subsys[__id]);                  \
		__css;                                                                      \
	})

static __always_inline u64 kernfs_id(const struct kernfs_node *kn)
{
	return READ(kn, id);
}

struct koord_counter {	/* of struct page_counter, in one piece where it lies in one */
	u64 high;
	u64 max;
	const struct page_counter *parent;
	u64 usage;
};

static __always_inline void read_counter(struct koord_counter *to, const struct page_counter *counter)
{
	u32 high_at = bpf_core_field_offset(struct page_counter, high);
	u32 max_at = bpf_core_field_offset(struct page_counter, max);
	u32 parent_at = bpf_core_field_offset(struct page_counter, parent);

	to->usage = READ(counter, usage.counter);
	if (HAS_FIELD(page_counter, high) && max_at == high_at + 8 && parent_at == high_at + 16) {
		READ_BYTES(&to->high, 24, &counter->high);	/* since v5.18 */
		return;
	}
	/* Before v5.8 struct mem_cgroup had `high`, and it is passed over. */
	to->high = HAS_FIELD(page_counter, high) ? READ(counter, high) : ~0ULL;
	to->max = READ(counter, max);
	to->parent = READ(counter, parent);
}

static __always_inline const struct mem_cgroup *memcg_of_counter(const struct page_counter *counter)
{
	return (const void *)counter - bpf_core_field_offset(struct mem_cgroup, memory);
}

/* One counter of a struct mm_struct. Others add to it in batches, so that it may be below zero for a moment. */
#define RSS_PAGES(mm, member)                                                                         \
	({                                                                                            \
		s64 __pages = 0;                                                                      \
		if (bpf_core_type_exists(struct mm_rss_stat))                                         \
			__pages = READ((struct mm_struct___shared *)(mm), rss_stat.count[member].counter); \
		else                                                                                  \
			__pages = READ(mm, rss_stat[member].count);                                   \
		__pages < 0 ? 0 : __pages;                                                            \
	})

/* Since v6.8 (commit 72ba14deb40a, "mm: update mark_victim tracepoints fields") the tracepoint hands over the task. */
static __always_inline bool mark_victim_has_task(void)
{
	return HAS_FIELD(trace_event_raw_mark_victim, uid);
}

/* Whether mm_compaction_begin and _end hand over a struct compact_control: 6.1 does, 5.10 three numbers in its place. */
static __always_inline bool compaction_has_control(void)
{
	return bpf_core_type_exists(btf_trace_mm_compaction_end___control);
}

#endif
