// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A dead man's switch: where user space writes no heartbeat while the node's tasks stall in reclaim, one cgroup that it has
 * chosen before is killed. An object of its own, loaded where it is switched on. The tasks that stall run it: a timer would
 * run on idle CPUs and kernel threads too, which may send no signal (bpf_send_signal_common, kernel/trace/bpf_trace.c).
 */
#include "koord_core.h"
#include "koord_deadman.h"

#define MAX_DEPTH 24
#define CHARGE_BATCH 64		/* pages; MEMCG_CHARGE_BATCH, memcontrol.h: a charge may fail this far below the limit */
#define MOST_ROOM_BYTES (16ULL << 20)	/* what a limit may have left while tasks wait because of it; docs/dead-man.md says why */
#define ROOM_SHIFT 2		/* of a small limit: a quarter */
#define PF_EXITING 0x00000004	/* include/linux/sched.h */
#define PF_KTHREAD 0x00200000
#define SIGKILL 9
#define MAX_SWEEPS 16		/* who was forked during the first look; a refusal for the moment */
#define SWEEP_EACH_NS 10000000ULL
#define SWEEP_UNTIL_NS 500000000ULL	/* the same cgroup may have another container later */

enum { BPF_TASK_ITER_ALL_THREADS = 1 };	/* kernel/bpf/task_iter.c */
enum pid_type { PIDTYPE_PID, PIDTYPE_TGID };
enum zone_stat_item { NR_FREE_PAGES };
enum node_stat_item { NR_INACTIVE_FILE = 2, NR_ACTIVE_FILE, NR_SLAB_RECLAIMABLE_B = 5 };

struct bpf_iter_task {
	__u64 __opaque[3];
} __attribute__((aligned(8)));

extern int bpf_iter_task_new(struct bpf_iter_task *it, struct task_struct *task, unsigned int flags) __ksym;
extern struct task_struct *bpf_iter_task_next(struct bpf_iter_task *it) __ksym;
extern void bpf_iter_task_destroy(struct bpf_iter_task *it) __ksym;
extern struct task_struct *bpf_task_acquire(struct task_struct *p) __ksym;
extern void bpf_task_release(struct task_struct *p) __ksym;
extern int bpf_send_signal_task(struct task_struct *task, int sig, enum pid_type type, u64 value) __ksym;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* include/linux/mmzone.h */
struct zone {
	atomic_long_t vm_stat[1];
};

struct pglist_data {
	struct zone node_zones[1];
	int nr_zones;
	atomic_long_t vm_stat[1];
};

struct lruvec___pgdat {
	struct pglist_data *pgdat;
};

#pragma clang attribute pop

KEEP_TYPE(koord_deadman_order);
KEEP_TYPE(koord_deadman_report);

MAP_ARRAY(deadman_order, struct koord_deadman_order, 1);
MAP_ARRAY(deadman_report, struct koord_deadman_report, 1);

#define MAX_NUMA_NODES 1024	/* CONFIG_NODES_SHIFT is 10 at most */
#define LOOK_AGAIN_NS 300000000ULL	/* two looks that are further apart do not say when a figure changed */
#define SUMS_APART_NS 500000000ULL	/* the kernel adds up each two seconds, CPU by CPU: a part of a sum is none of its own */
#define SUMS_WITHIN_NS 10000000000ULL

/* Where a stall comes from: each kind is added up by itself, and has memory of its own to be short of. */
enum stall_kind { OF_NODE, OF_LIMIT, STALL_KINDS, NO_STALL = STALL_KINDS };

/* What may call one. */
enum stall_cause { BY_MACHINE, BY_SECTION, BY_LIMIT };

struct figure {
	u64 looked_ns;
	u64 reclaimable_pages;
	u64 memcg;
	u64 short_ns;	/* when a new sum said first that memory is short; 0: the last one said that there is enough */
};

struct stall_window {
	u64 since_ns;	/* `after_ns` long; then another one begins */
	u64 stall_ns;
	struct figure node;	/* at what follows */
	struct figure limited;
	u64 claimed_ns;	/* of OF_NODE: the heartbeat for which some CPU fires or has fired */
};

MAP_ARRAY(deadman_stall, struct stall_window, STALL_KINDS);

#define STALL_SLOTS 8192

/* At the thread's id modulo their number: of two in one slot the later one is counted. An end that is missed leaves nothing. */
struct open_stall {
	u64 since_ns;	/* its begin, or when it was counted last */
	u32 tid;
	u32 kind;
};

MAP_ARRAY(deadman_inside, struct open_stall, STALL_SLOTS);

/* The node as the running task sees it from its own cgroup. */
struct node_seen {
	u64 usage_pages;
	struct mem_cgroup *memcg;
	struct mem_cgroup *limited;	/* the topmost of those above the victim that has no room left */
	u64 limited_usage;
	u64 limit_pages;
	bool is_in;
	bool is_at_own_limit;	/* another one below the node has no room left: that is not the node's shortage */
};

/*
 * Whether a task of such a cgroup may wait because of its limit. A charge that fails takes a batch of pages and what each CPU
 * has charged ahead; until they are used again, the pages that it took are waited for below the limit.
 */
static __always_inline bool has_no_room(struct koord_deadman_order *order, u64 usage, u64 limit)
{
	u64 room = limit >> ROOM_SHIFT, most = MOST_ROOM_BYTES >> order->page_shift;

	if (room > most)
		room = most;
	if (room < CHARGE_BATCH)
		room = CHARGE_BATCH;
	return usage + room >= limit;
}

/* The directories that the victim lies in, as kubepods and its QoS level: who is killed leaves room in each of them. */
static __always_inline bool is_above_victim(struct koord_deadman_order *order, u64 id)
{
	return id == order->above_ids[0] || id == order->above_ids[1] || id == order->above_ids[2] || id == order->above_ids[3];
}

static __always_inline void look_at_node(struct node_seen *seen, struct koord_deadman_order *order, struct task_struct *task)
{
	u64 node_id = order->node_cgroup_id, id, limit;
	struct css_set *css_set = READ(task, cgroups);
	struct mem_cgroup *memcg = (struct mem_cgroup *)MEMORY_CSS(css_set);
	const struct page_counter *at = &memcg->memory;
	struct koord_counter counter;

	if (!memcg)
		return;
	seen->is_in = node_id == 0;
	seen->memcg = memcg;
	for (int i = 0; i < MAX_DEPTH && at; i++) {
		read_counter(&counter, at);
		memcg = (struct mem_cgroup *)memcg_of_counter(at);
		limit = counter.high < counter.max ? counter.high : counter.max;
		id = node_id || has_no_room(order, counter.usage, limit) ? kernfs_id(READ(memcg, css.cgroup, kn)) : 0;
		if (node_id && id == node_id) {
			seen->usage_pages = counter.usage;
			seen->memcg = memcg;
			seen->is_in = true;
			return;
		}
		if (has_no_room(order, counter.usage, limit)) {
			if (is_above_victim(order, id)) {
				seen->limited = memcg;
				seen->limited_usage = counter.usage;
				seen->limit_pages = limit;
			} else {
				seen->is_at_own_limit = true;
			}
		}
		at = counter.parent;
	}
}

static __always_inline bool is_below(struct task_struct *task, u64 cgroup_id)
{
	struct css_set *css_set = READ(task, cgroups);
	struct cgroup_subsys_state *css = MEMORY_CSS(css_set);

	for (int i = 0; i < MAX_DEPTH && css; i++) {
		if (kernfs_id(READ(css, cgroup, kn)) == cgroup_id)
			return true;
		css = READ(css, parent);
	}
	return false;
}

static __always_inline u64 counter_at(u64 base, u32 index)
{
	s64 value = 0;

	READ_BYTES(&value, sizeof(value), (const void *)(base + index * sizeof(value)));
	return value < 0 ? 0 : value;
}

struct node_sum {
	struct mem_cgroup *memcg;
	u64 pages;
	u32 page_shift;
};

static __always_inline u64 easily_reclaimed(u64 stat)
{
	return counter_at(stat, bpf_core_enum_value(enum node_stat_item, NR_INACTIVE_FILE)) +
	       counter_at(stat, bpf_core_enum_value(enum node_stat_item, NR_ACTIVE_FILE));
}

static int add_zone(u32 index, u64 *at_and_sum)
{
	at_and_sum[1] += counter_at(at_and_sum[0], bpf_core_enum_value(enum zone_stat_item, NR_FREE_PAGES));
	at_and_sum[0] += bpf_core_type_size(struct zone);
	return 0;
}

static int add_available(u32 nid, struct node_sum *sum)
{
	struct mem_cgroup_per_node *info = NULL;
	struct pglist_data *pgdat;
	u64 free[2] = {}, stat;

	READ_BYTES(&info, sizeof(info), &sum->memcg->nodeinfo[nid & (MAX_NUMA_NODES - 1)]);
	if (!info)
		return 0;
	pgdat = READ((struct lruvec___pgdat *)((u64)info + bpf_core_field_offset(struct mem_cgroup_per_node, lruvec)), pgdat);
	if (!pgdat)
		return 0;
	stat = (u64)pgdat + bpf_core_field_offset(struct pglist_data, vm_stat);
	free[0] = (u64)pgdat + bpf_core_field_offset(struct pglist_data, node_zones) +
		  bpf_core_field_offset(struct zone, vm_stat);
	bpf_loop((u32)READ(pgdat, nr_zones), add_zone, free, 0);
	sum->pages += free[1] + easily_reclaimed(stat) +
		      counter_at(stat, bpf_core_enum_value(enum node_stat_item, NR_SLAB_RECLAIMABLE_B));
	return 0;
}

static int add_reclaimable(u32 nid, struct node_sum *sum)
{
	struct mem_cgroup_per_node *info = NULL;
	u64 stat;

	READ_BYTES(&info, sizeof(info), &sum->memcg->nodeinfo[nid & (MAX_NUMA_NODES - 1)]);
	if (!info)
		return 0;
	stat = (u64)READ(info, lruvec_stats) + bpf_core_field_offset(struct lruvec_stats, state);
	sum->pages += easily_reclaimed(stat) +
		      (counter_at(stat, bpf_core_enum_value(enum node_stat_item, NR_SLAB_RECLAIMABLE_B)) >> sum->page_shift);
	return 0;
}

/*
 * Free, page cache and reclaimable slab of the whole machine: more than MemAvailable ever is, which leaves out what the
 * watermarks keep. Every memory cgroup leads to the NUMA nodes; the kernel's global sums have no BTF.
 */
static __always_inline u64 available_pages(struct mem_cgroup *memcg, u32 numa_nodes)
{
	struct node_sum sum = { .memcg = memcg };

	bpf_loop(numa_nodes, add_available, &sum, 0);
	return sum.pages;
}

/* What the node could reclaim, as the kernel added it up last, which it does each two seconds. */
static __always_inline u64 reclaimable_pages(struct mem_cgroup *memcg, struct koord_deadman_order *order)
{
	struct node_sum sum = { .memcg = memcg, .page_shift = order->page_shift };

	bpf_loop(order->numa_nodes, add_reclaimable, &sum, 0);
	return sum.pages;
}

/* Each process of the victim by what its cgroup is at this moment, and no other: no pid is kept that could be reused. */
static __always_inline void sweep(struct koord_deadman_report *report, bool kills)
{
	struct task_struct *task, *own;
	struct bpf_iter_task it;
	u32 last_tgid = 0, seen = 0;

	bpf_iter_task_new(&it, NULL, BPF_TASK_ITER_ALL_THREADS);
	while ((task = bpf_iter_task_next(&it))) {
		u32 tgid = READ(task, tgid);
		int error;

		/* Threads of a process follow each other. The first that does not exit already takes the signal for all. */
		if (tgid == last_tgid || tgid == 1 || (READ(task, flags) & (PF_KTHREAD | PF_EXITING)))
			continue;
		if (!is_below(task, report->victim_id))
			continue;
		last_tgid = tgid;
		seen++;
		if (!kills)
			continue;
		own = bpf_task_acquire(task);
		if (!own)
			continue;
		error = bpf_send_signal_task(own, SIGKILL, PIDTYPE_TGID, 0);
		bpf_task_release(own);
		if (error) {
			report->refused++;
			report->error = error;
		} else {
			report->signalled++;
		}
	}
	bpf_iter_task_destroy(&it);
	if (!report->sweeps)
		report->seen = seen;
	report->sweeps++;
}

/* Whether the figure is new: an older one may leave out page cache that came since, and a look at it decides nothing. */
static __always_inline bool is_news(struct figure *figure, struct mem_cgroup *memcg, u64 reclaimable, u64 now_ns)
{
	bool is_new = figure->reclaimable_pages != reclaimable && figure->memcg == (u64)memcg &&
		      now_ns < figure->looked_ns + LOOK_AGAIN_NS;

	figure->reclaimable_pages = reclaimable;
	figure->memcg = (u64)memcg;
	figure->looked_ns = now_ns;
	return is_new;
}

enum memory { UNKNOWN, ENOUGH, SHORT };

/* Two sums in turn have to say it: a look while the kernel adds up sees the figures of some CPUs alone. */
static __always_inline enum memory said_twice(struct figure *figure, bool is_short, u64 now_ns)
{
	u64 short_ns = figure->short_ns;

	if (!is_short) {
		figure->short_ns = 0;
		return ENOUGH;
	}
	if (!short_ns || now_ns > short_ns + SUMS_WITHIN_NS) {
		figure->short_ns = now_ns;
		return UNKNOWN;
	}
	return now_ns > short_ns + SUMS_APART_NS ? SHORT : UNKNOWN;
}

static __always_inline u64 less_pages(u64 pages, u64 less)
{
	return pages > less ? pages - less : 0;
}

static __always_inline enum memory node_memory(struct koord_deadman_order *order, struct stall_window *window,
					       struct node_seen *seen, u64 now_ns, u64 *pages)
{
	u64 reclaimable;

	if (!order->node_cgroup_id) {
		*pages = available_pages(seen->memcg, order->numa_nodes);
		return *pages < order->below_pages ? SHORT : ENOUGH;
	}
	reclaimable = reclaimable_pages(seen->memcg, order);
	if (!is_news(&window->node, seen->memcg, reclaimable, now_ns))
		return UNKNOWN;
	*pages = less_pages(seen->usage_pages, reclaimable);
	return said_twice(&window->node, *pages >= order->above_pages, now_ns);
}

/* Of the directory above the victim: the same part of its limit in use as the node's threshold is of the node. */
static __always_inline enum memory limited_memory(struct koord_deadman_order *order, struct stall_window *window,
						  struct node_seen *seen, u64 now_ns)
{
	u64 reclaimable = reclaimable_pages(seen->limited, order);

	if (!is_news(&window->limited, seen->limited, reclaimable, now_ns))
		return UNKNOWN;
	return less_pages(seen->limited_usage, reclaimable) * 100 >= seen->limit_pages * order->percent ? SHORT : ENOUGH;
}

static __always_inline bool fire(struct koord_deadman_order *order, struct koord_deadman_report *report,
				 struct stall_window *window, struct node_seen *seen, u32 kind, u64 now_ns)
{
	u64 heartbeat_ns = order->heartbeat_ns, before_ns = report->heartbeat_ns, pages = 0, victim_id = order->victim_id;
	u64 stall_ns = window->stall_ns, claimed_ns;
	enum memory node, limited = SHORT;
	u32 first = OF_NODE;

	if (!victim_id)
		return false;
	node = node_memory(order, window, seen, now_ns, &pages);
	if (kind == OF_LIMIT)
		limited = limited_memory(order, window, seen, now_ns);
	if (node == ENOUGH || limited == ENOUGH) {
		__sync_fetch_and_add(&report->spared, 1);
		return false;
	}
	window = map_lookup(deadman_stall, &first);
	if (node == UNKNOWN || limited == UNKNOWN || !window)
		return false;
	/* User space is back, or another CPU was first. */
	claimed_ns = window->claimed_ns;
	if (order->heartbeat_ns != heartbeat_ns || now_ns < heartbeat_ns + order->after_ns || claimed_ns == heartbeat_ns ||
	    __sync_val_compare_and_swap(&window->claimed_ns, claimed_ns, heartbeat_ns) != claimed_ns)
		return false;
	report->victim_id = victim_id;
	report->mode = order->mode;
	report->stall_ns = stall_ns;
	report->pages = pages;
	report->at_limit = kind == OF_LIMIT;
	report->sweeps = report->seen = report->signalled = report->refused = 0;
	report->error = 0;
	report->swept_ns = now_ns;
	report->fired_ns = now_ns;
	report->fired++;
	/* Last, and ordered after the rest: others that see it look at all tasks again. */
	return __sync_val_compare_and_swap(&report->heartbeat_ns, before_ns, heartbeat_ns) == before_ns;
}

static __always_inline void add_stall(struct stall_window *window, u64 after_ns, u64 begin_ns, u64 now_ns)
{
	if (now_ns > window->since_ns + after_ns) {
		window->stall_ns = 0;	/* two CPUs that come first may lose one of their two stalls */
		window->since_ns = now_ns;
	}
	if (begin_ns + after_ns < now_ns)
		begin_ns = now_ns - after_ns;
	if (now_ns > begin_ns)
		__sync_fetch_and_add(&window->stall_ns, now_ns - begin_ns);
}

static __always_inline struct stall_window *window_of(u32 kind)
{
	return map_lookup(deadman_stall, &kind);
}

static __always_inline bool is_enough(struct stall_window *window, struct koord_deadman_order *order, u64 now_ns)
{
	return window->stall_ns >= order->stall_ns && now_ns <= window->since_ns + order->after_ns;
}

static __always_inline void look(u64 now_ns)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	u32 zero = 0, kind;
	struct koord_deadman_order *order = map_lookup(deadman_order, &zero);
	struct koord_deadman_report *report = map_lookup(deadman_report, &zero);
	struct stall_window *of_node = window_of(OF_NODE), *of_limit = window_of(OF_LIMIT);
	struct node_seen seen = {};
	u64 heartbeat_ns, swept_ns;

	if (!order || !report || !of_node || !of_limit || order->mode == KOORD_DEADMAN_OFF)
		return;
	heartbeat_ns = order->heartbeat_ns;
	if (!heartbeat_ns || now_ns < heartbeat_ns + order->after_ns || now_ns > order->until_ns ||
	    (READ(task, flags) & (PF_KTHREAD | PF_EXITING)))
		return;
	if (report->heartbeat_ns == heartbeat_ns) {
		swept_ns = report->swept_ns;
		if (report->mode != KOORD_DEADMAN_KILL || report->sweeps >= MAX_SWEEPS || now_ns < swept_ns + SWEEP_EACH_NS ||
		    now_ns > report->fired_ns + SWEEP_UNTIL_NS ||
		    __sync_val_compare_and_swap(&report->swept_ns, swept_ns, now_ns) != swept_ns)
			return;
	} else {
		kind = is_enough(of_node, order, now_ns) ? OF_NODE : OF_LIMIT;
		if (kind == OF_LIMIT && !is_enough(of_limit, order, now_ns))
			return;
		look_at_node(&seen, order, task);
		if (!seen.is_in || (kind == OF_LIMIT && !seen.limited) ||
		    !fire(order, report, kind == OF_LIMIT ? of_limit : of_node, &seen, kind, now_ns))
			return;
	}
	sweep(report, report->mode == KOORD_DEADMAN_KILL);
}

static __always_inline struct open_stall *stall_of(u32 tid)
{
	u32 slot = tid % STALL_SLOTS;

	return map_lookup(deadman_inside, &slot);
}

/* Reclaim of the whole machine is the node's for any task; a limit is so for those above the victim alone. */
static __always_inline u32 kind_of(struct koord_deadman_order *order, struct node_seen *seen, enum stall_cause cause)
{
	if (!seen->is_in)
		return NO_STALL;
	if (cause == BY_MACHINE)
		return OF_NODE;
	if (seen->is_at_own_limit)
		return NO_STALL;
	if (seen->limited)
		return OF_LIMIT;
	return cause == BY_LIMIT && !order->node_cgroup_id ? NO_STALL : OF_NODE;
}

static __always_inline void begin_stall(enum stall_cause cause)
{
	u32 tid = (u32)bpf_get_current_pid_tgid(), zero = 0, kind;
	struct koord_deadman_order *order = map_lookup(deadman_order, &zero);
	struct open_stall *open = stall_of(tid);
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct node_seen seen = {};
	u64 now_ns = bpf_ktime_get_ns();

	/* No task waits for a kernel thread that reclaims (kswapd, kcompactd). */
	if (!order || !open || order->mode == KOORD_DEADMAN_OFF || (READ(task, flags) & PF_KTHREAD))
		return;
	look_at_node(&seen, order, task);
	kind = kind_of(order, &seen, cause);
	if (kind == NO_STALL) {
		if (open->tid == tid)
			open->tid = 0;
		return;
	}
	open->since_ns = now_ns;
	open->kind = kind;
	open->tid = tid;
	look(now_ns);
}

/* Adds what the running task has waited since it was looked at last. */
static __always_inline void count_stall(bool is_over)
{
	u32 tid = (u32)bpf_get_current_pid_tgid(), zero = 0;
	struct koord_deadman_order *order = map_lookup(deadman_order, &zero);
	struct koord_deadman_report *report = map_lookup(deadman_report, &zero);
	struct open_stall *open = stall_of(tid);
	struct stall_window *window;
	u64 now_ns = bpf_ktime_get_ns(), since_ns;

	if (!open || open->tid != tid)
		return;
	since_ns = open->since_ns;
	open->since_ns = now_ns;
	window = window_of(open->kind);
	if (is_over)
		open->tid = 0;
	if (!order || !window || !report)
		return;
	add_stall(window, order->after_ns, since_ns, now_ns);
	if (is_over && now_ns > order->heartbeat_ns + order->after_ns)
		__sync_fetch_and_add(&report->late_stalls, 1);
	look(now_ns);
}

/*
 * One of two sources, which user space picks. Where the kernel accounts pressure, these: a section of psi_memstall holds
 * reclaim, compaction, and the wait for a page that was reclaimed too early, for swap, and at memory.high. Sections nest; the
 * kernel's own mark says which is the outermost, so that a missed run of a program spoils no other.
 */
SEC("fentry/psi_memstall_enter")
int on_deadman_enter(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();

	if (!BPF_CORE_READ_BITFIELD_PROBED(task, in_memstall))
		begin_stall(BY_SECTION);
	return 0;
}

SEC("fentry/psi_memstall_leave")
int on_deadman_leave(u64 *ctx)
{
	unsigned long was_inside = 0;

	READ_BYTES(&was_inside, sizeof(was_inside), (const void *)ctx[0]);
	if (!was_inside)
		count_stall(true);
	return 0;
}

/*
 * With either: the machine's own reclaim counts, however little room its task's cgroup has. It lies in a section, with whose end
 * it ends; without sections it has an end of its own.
 */
SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int on_deadman_direct_begin(u64 *ctx)
{
	begin_stall(BY_MACHINE);
	return 0;
}

/* Each few pages of one long reclaim, which may not end for seconds. */
SEC("tp_btf/mm_vmscan_lru_shrink_inactive")
int on_deadman_shrink(u64 *ctx)
{
	u32 zero = 0;
	struct koord_deadman_order *order = map_lookup(deadman_order, &zero);

	if (order && order->mode != KOORD_DEADMAN_OFF && bpf_ktime_get_ns() > order->heartbeat_ns + order->after_ns)
		count_stall(false);
	return 0;
}

/* Where the kernel accounts no pressure, reclaim is all that is counted. */
SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int on_deadman_direct_end(u64 *ctx)
{
	count_stall(true);
	return 0;
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int on_deadman_memcg_begin(u64 *ctx)
{
	begin_stall(BY_LIMIT);
	return 0;
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int on_deadman_memcg_end(u64 *ctx)
{
	count_stall(true);
	return 0;
}

KEEP_LICENSE("Dual BSD/GPL");
