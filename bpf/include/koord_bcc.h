/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The words of koord_core.h as bcc has them: its tables, and the headers of the running kernel in place of BTF. A difference
 * between kernels is therefore settled here, when the programs are compiled, and not when they are loaded.
 */
#ifndef KOORD_BCC_H
#define KOORD_BCC_H

#include <linux/version.h>
#include <linux/sched.h>
#include <linux/cgroup.h>
#include <linux/kernfs.h>
#include <linux/memcontrol.h>
#include <linux/page_counter.h>
#include <linux/mm_types.h>
#include <trace/events/oom.h>
struct compact_control;	/* mm/internal.h */
#include <trace/events/compaction.h>

/* What the kernel's BPF can do; lower than LINUX_VERSION_CODE where a test wants an older kernel's ways. */
#ifndef KOORD_RELEASE
#define KOORD_RELEASE LINUX_VERSION_CODE
#endif

/*
 * bcc numbers its tables -1, -2, … as it meets them and puts the maps' fds in place of the numbers when it loads the programs.
 * It writes the numbers itself only where a table is used outside macros and in the main file, so here they are counted along.
 * A number that something else took from __COUNTER__ shows in KOORD_LAYOUTS, and the child refuses it.
 */
enum { koord_first_table = __COUNTER__ };
#define TABLE(kind, name, key_type, value_type, entries, flags)      \
	BPF_F_TABLE(kind, key_type, value_type, name, entries, flags); \
	enum { koord_table_##name = koord_first_table - __COUNTER__ }
#define TABLE_FD(name) ((void *)bpf_pseudo_fd(1, koord_table_##name))

#define MAP_HASH(name, key_type, value_type, entries) TABLE("hash", name, key_type, value_type, entries, 0)
#define MAP_LRU_HASH(name, key_type, value_type, entries) TABLE("lru_hash", name, key_type, value_type, entries, 0)
#define MAP_PERCPU_ARRAY(name, value_type, entries) TABLE("percpu_array", name, u32, value_type, entries, 0)
/* Arrays can be mapped into user space since v5.5; before that it reads them by system calls. */
#if KOORD_RELEASE >= KERNEL_VERSION(5, 5, 0)
#define MAP_ARRAY(name, value_type, entries) TABLE("array", name, u32, value_type, entries, BPF_F_MMAPABLE)
#else
#define MAP_ARRAY(name, value_type, entries) TABLE("array", name, u32, value_type, entries, 0)
#endif

/* The ring buffer came in v5.8; before that each CPU has its perf buffer. */
#if KOORD_RELEASE >= KERNEL_VERSION(5, 8, 0)
#define RING(name, bytes)                              \
	BPF_RINGBUF_OUTPUT(name, (bytes) / PAGE_SIZE); \
	enum { koord_table_##name = koord_first_table - __COUNTER__ }
#define ring_output(ctx, ring, record, bytes) bpf_ringbuf_output(TABLE_FD(ring), record, bytes, 0)
#else
#define RING(name, bytes)      \
	BPF_PERF_OUTPUT(name); \
	enum { koord_table_##name = koord_first_table - __COUNTER__ }
#define ring_output(ctx, ring, record, bytes) \
	bpf_perf_event_output(ctx, TABLE_FD(ring), BPF_F_CURRENT_CPU, record, bytes)
#endif

#define map_lookup(map, key) ((typeof(map.leaf) *)bpf_map_lookup_elem(TABLE_FD(map), key))
#define map_update(map, key, value) bpf_map_update_elem(TABLE_FD(map), key, value, BPF_ANY)
#define map_insert(map, key, value) bpf_map_update_elem(TABLE_FD(map), key, value, BPF_NOEXIST)
#define map_delete(map, key) bpf_map_delete_elem(TABLE_FD(map), key)

/* bcc tells the layout of tables only (KOORD_LAYOUTS), and gives the programs the licence "GPL" by itself. */
#define KEEP_TYPE(name)
#define KEEP_LICENSE(name)

#define TRACEPOINT(name)                                       \
	__attribute__((section(".bpf.fn.on_" #name)))          \
	int on_##name(struct bpf_raw_tracepoint_args *ctx)
#define ARG(ctx, i) ((ctx)->args[i])
/* Where the child attaches it is in its name; bcc attaches kprobe__<function> by itself. */
#define FUNCTION(name)                                         \
	__attribute__((section(".bpf.fn.kprobe_on_" #name)))   \
	int kprobe_on_##name(void *ctx)

/* bpf_probe_read_kernel came in v5.5. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 5, 0)
#define bpf_probe_read_kernel bpf_probe_read
#define bpf_probe_read_kernel_str bpf_probe_read_str
#endif

#undef READ	/* linux/kernel.h or linux/fs.h */
#define READ(p, ...) READ_BY(__VA_ARGS__, READ_4, READ_3, READ_2, READ_1)(p, __VA_ARGS__)
#define READ_BY(a, b, c, d, name, ...) name
#define READ_1(p, a)                                              \
	({                                                        \
		typeof(({ (p)->a; })) __value;	/* without const */ \
		bpf_probe_read_kernel(&__value, sizeof(__value), &(p)->a); \
		__value;                                          \
	})
#define READ_2(p, a, b) READ_1(READ_1(p, a), b)
#define READ_3(p, a, b, c) READ_1(READ_2(p, a, b), c)
#define READ_4(p, a, b, c, d) READ_1(READ_3(p, a, b, c), d)
#define READ_STR(to, p, field) bpf_probe_read_kernel_str(to, sizeof(*(to)), &(p)->field)
#define READ_BYTES(to, bytes, from) bpf_probe_read_kernel(to, bytes, from)
#define READ_STRING(to, bytes, from) bpf_probe_read_kernel_str(to, bytes, from)

#define MEMORY_CSS(of) READ_1(of, subsys[memory_cgrp_id])

#ifndef barrier_var
#define barrier_var(var) asm volatile("" : "+r"(var))
#endif

/*
 * Before v5.5 (commit 67c0496e87d1, "kernfs: convert kernfs_node->id from union kernfs_node_id to u64") the inode number that
 * user space sees is the low half of the id, the generation the high one: only the low half is a cgroup's id there.
 */
static __always_inline u64 kernfs_id(const struct kernfs_node *kn)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 5, 0)
	return READ(kn, id);
#else
	return READ(kn, id.ino);
#endif
}

struct koord_counter {	/* of struct page_counter, in one piece where it lies in one */
	u64 high;
	u64 max;
	const struct page_counter *parent;
	u64 usage;
};

static __always_inline const struct mem_cgroup *memcg_of_counter(const struct page_counter *counter)
{
	return (const void *)counter - offsetof(struct mem_cgroup, memory);
}

static __always_inline void read_counter(struct koord_counter *to, const struct page_counter *counter)
{
	to->usage = READ(counter, usage.counter);
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 8, 0)
	if (offsetof(struct page_counter, max) == offsetof(struct page_counter, high) + 8 &&
	    offsetof(struct page_counter, parent) == offsetof(struct page_counter, high) + 16) {
		READ_BYTES(&to->high, 24, &counter->high);	/* since v5.18 */
		return;
	}
	to->high = READ(counter, high);
#else
	to->high = READ(memcg_of_counter(counter), high);
#endif
	to->max = READ(counter, max);
	to->parent = READ(counter, parent);
}

/* One counter of a struct mm_struct; v6.2 (commit f1a7941243c1) made them per-CPU ones. Each may be below zero for a moment. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
#define RSS_COUNT(mm, member) READ(mm, rss_stat[member].count)
#else
#define RSS_COUNT(mm, member) READ(mm, rss_stat.count[member].counter)
#endif
#define RSS_PAGES(mm, member)                         \
	({                                            \
		s64 __pages = RSS_COUNT(mm, member);  \
		__pages < 0 ? 0 : __pages;            \
	})

/* v6.8 is no test for it: stable kernels since 5.10.211 and 6.1.80 have it too. */
static __always_inline bool mark_victim_has_task(void)
{
	return __builtin_types_compatible_p(typeof(&trace_mark_victim), void (*)(struct task_struct *, uid_t));
}

static __always_inline bool compaction_has_control(void)
{
	return __builtin_types_compatible_p(typeof(&trace_mm_compaction_end),
					    void (*)(struct compact_control *, unsigned long, unsigned long, bool, int));
}

/*
 * One table at the end of all, never written: its value names every structure that user space reads, and as many bytes as
 * there are tables.
 */
#define KOORD_LAYOUTS                                               \
	struct koord_layouts {                                      \
		char tables[__COUNTER__ - koord_first_table];       \
		struct koord_head koord_head;                       \
		struct koord_reclaim koord_reclaim;                 \
		struct koord_oom_kill koord_oom_kill;               \
		struct koord_wait koord_wait;                       \
		struct koord_populated koord_populated;             \
		struct koord_migration koord_migration;             \
		struct koord_cgroup koord_cgroup;                   \
		struct koord_kswapd koord_kswapd;                   \
		struct koord_stall_sum koord_stall_sum;             \
		struct koord_stall koord_stall;                     \
		struct koord_totals koord_totals;                   \
		struct koord_settings koord_settings;               \
	};                                                          \
	BPF_TABLE("array", u32, struct koord_layouts, layouts, 1)

#endif
