// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Reclaim stalls: who waited for memory, how long, and whose limit made it wait. */
#include "koord_maps.h"

struct begun {
	u64 ts_ns;
	u64 cgroup_id;
	u64 limit_id;
	u32 is_global;
	u32 order;
};

/* Episodes that are under way, by thread. Bounded by the threads that can reclaim at one moment. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, struct begun);
} begun SEC(".maps");

/* Per-cgroup sums. 4096 cgroups that ever stalled; user space removes the dead. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, struct koord_stall);
} stalls SEC(".maps");

const struct koord_reclaim *unused_reclaim __attribute__((unused));
const struct koord_kswapd *unused_kswapd __attribute__((unused));

static const struct koord_stall no_stall;

static __always_inline int episode_begin(u32 order, bool is_memcg)
{
	struct koord_settings *set = get_settings();
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct koord_limit limit;
	struct mem_cgroup *memcg;
	struct begun begin = {};

	if (!set)
		return 0;
	memcg = memcg_of_task((struct task_struct *)bpf_get_current_task());
	limit = find_limit(memcg, set->node_cgroup_id);
	if (!limit.in_node || (is_memcg && !limit.id)) {
		count(ignored);
		return 0;
	}
	begin.ts_ns = bpf_ktime_get_ns();
	begin.cgroup_id = BPF_CORE_READ(memcg, css.cgroup, kn, id);
	begin.limit_id = is_memcg ? limit.id : 0;
	begin.is_global = !is_memcg || limit.is_node;
	begin.order = order;
	bpf_map_update_elem(&begun, &tid, &begin, BPF_ANY);
	return 0;
}

static __always_inline u32 log2_slot(u64 us)
{
	u32 slot = 0;

	for (int shift = 16; shift; shift >>= 1) {
		if (us >> shift) {
			us >>= shift;
			slot += shift;
		}
	}
	return slot < KOORD_HIST_SLOTS ? slot : KOORD_HIST_SLOTS - 1;
}

static __always_inline void add_stall(struct begun *begin, u64 now_ns, u64 delta_ns, u64 pages)
{
	struct koord_stall *stall = bpf_map_lookup_elem(&stalls, &begin->cgroup_id);
	struct koord_stall_sum *sum;
	u32 slot;

	if (!stall) {
		bpf_map_update_elem(&stalls, &begin->cgroup_id, &no_stall, BPF_NOEXIST);
		stall = bpf_map_lookup_elem(&stalls, &begin->cgroup_id);
		if (!stall) {
			count(stalls_full);
			return;
		}
	}
	sum = begin->is_global ? &stall->global : &stall->limit;
	__sync_fetch_and_add(&sum->count, 1);
	__sync_fetch_and_add(&sum->total_ns, delta_ns);
	__sync_fetch_and_add(&sum->reclaimed_pages, pages);
	if (delta_ns > sum->max_ns)
		sum->max_ns = delta_ns;	/* two CPUs may race: the maximum is a hint, the sums are exact */
	slot = log2_slot(delta_ns / 1000) & (KOORD_HIST_SLOTS - 1);
	__sync_fetch_and_add(&sum->hist[slot], 1);
	stall->last_ts_ns = now_ns;
}

static __always_inline int episode_end(u64 pages)
{
	u64 pid_tgid = bpf_get_current_pid_tgid();
	struct koord_settings *set = get_settings();
	u64 now_ns = bpf_ktime_get_ns();
	u32 tid = (u32)pid_tgid;
	struct begun *begin = bpf_map_lookup_elem(&begun, &tid);
	u64 delta_ns;

	if (!begin) {
		count(unmatched_ends);
		return 0;
	}
	delta_ns = now_ns - begin->ts_ns;
	add_stall(begin, now_ns, delta_ns, pages);
	count(episodes);
	if (set && delta_ns >= set->min_stall_ns) {
		struct koord_reclaim record = {
			.head = { KOORD_RECLAIM, sizeof(record), now_ns, begin->cgroup_id },
			.limit_id = begin->limit_id,
			.delta_ns = delta_ns,
			.nr_reclaimed = pages,
			.tgid = pid_tgid >> 32,
			.tid = tid,
			.is_global = begin->is_global,
			.order = begin->order,
		};

		bpf_get_current_comm(record.comm, sizeof(record.comm));
		send_record(&record);
	}
	bpf_map_delete_elem(&begun, &tid);
	return 0;
}

SEC("raw_tp/mm_vmscan_direct_reclaim_begin")
int on_mm_vmscan_direct_reclaim_begin(struct bpf_raw_tracepoint_args *ctx)
{
	return episode_begin(ctx->args[0], false);
}

SEC("raw_tp/mm_vmscan_direct_reclaim_end")
int on_mm_vmscan_direct_reclaim_end(struct bpf_raw_tracepoint_args *ctx)
{
	return episode_end(ctx->args[0]);
}

SEC("raw_tp/mm_vmscan_memcg_reclaim_begin")
int on_mm_vmscan_memcg_reclaim_begin(struct bpf_raw_tracepoint_args *ctx)
{
	return episode_begin(ctx->args[0], true);
}

SEC("raw_tp/mm_vmscan_memcg_reclaim_end")
int on_mm_vmscan_memcg_reclaim_end(struct bpf_raw_tracepoint_args *ctx)
{
	return episode_end(ctx->args[0]);
}

/* Also sent when kswapd is awake already and gets a higher order: only the first wake of a run counts. */
SEC("raw_tp/mm_vmscan_kswapd_wake")
int on_mm_vmscan_kswapd_wake(struct bpf_raw_tracepoint_args *ctx)
{
	struct koord_totals *sums = get_totals();
	u32 nid = ctx->args[0];

	if (!sums || nid >= KOORD_MAX_NUMA_NODES || sums->kswapd_woken_ts_ns[nid])
		return 0;
	sums->kswapd_woken_ts_ns[nid] = bpf_ktime_get_ns();
	__sync_fetch_and_add(&sums->kswapd_wakes[nid], 1);
	return 0;
}

SEC("raw_tp/mm_vmscan_kswapd_sleep")
int on_mm_vmscan_kswapd_sleep(struct bpf_raw_tracepoint_args *ctx)
{
	struct koord_settings *set = get_settings();
	struct koord_totals *sums = get_totals();
	u32 nid = ctx->args[0];
	u64 now_ns = bpf_ktime_get_ns();
	u64 delta_ns;

	if (!set || !sums || nid >= KOORD_MAX_NUMA_NODES || !sums->kswapd_woken_ts_ns[nid])
		return 0;
	delta_ns = now_ns - sums->kswapd_woken_ts_ns[nid];
	sums->kswapd_woken_ts_ns[nid] = 0;
	__sync_fetch_and_add(&sums->kswapd_awake_ns[nid], delta_ns);
	if (set->trace_kswapd) {
		struct koord_kswapd record = {
			.head = { KOORD_KSWAPD, sizeof(record), now_ns, 0 },
			.delta_ns = delta_ns,
			.nid = nid,
		};

		send_record(&record);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
