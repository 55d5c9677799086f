// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Fills a ring buffer with records at the pace of the caller: BPF_PROG_TEST_RUN with repeat = n writes n records.
 * Each CPU numbers its own, so that a reader can tell a lost, a doubled and a misplaced one.
 */
#include "koord_vmlinux.h"
#include <bpf/bpf_helpers.h>
#include "koord_events.h"

#define MAX_CPUS 256

struct flood {
	__u64 sent;	/* also the number of the next record */
	__u64 lost;	/* found the ring full; they have no number */
	__u32 is_mixed; /* in turns of four kinds by chance, not koord_reclaim alone */
	__u32 discards; /* one of so many is reserved and given up; 0: none. It has no number either */
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20); /* user space may choose another size before load */
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct flood);
} floods SEC(".maps");

static __always_inline void fill(struct koord_head *head, u32 kind, u32 size, u32 cpu, u64 number)
{
	head->kind = kind;
	head->size = size;
	head->ts_ns = number;
	head->cgroup_id = cpu;
}

/* The number is in the head; the body repeats it, so that a torn record shows. */
#define send(type, kind, member)                                                                                       \
	({                                                                                                             \
		struct type *__r = bpf_ringbuf_reserve(&events, sizeof(*__r), 0);                                      \
		if (!__r) {                                                                                            \
			flood->lost++;                                                                                 \
			return 0;                                                                                      \
		}                                                                                                      \
		__builtin_memset(__r, 0, sizeof(*__r));                                                                \
		fill(&__r->head, kind, sizeof(*__r), cpu, flood->sent);                                                \
		__r->member = flood->sent;                                                                             \
		if (flood->discards && bpf_get_prandom_u32() % flood->discards == 0) {                                 \
			bpf_ringbuf_discard(__r, 0);                                                                   \
		} else {                                                                                               \
			bpf_ringbuf_submit(__r, 0);                                                                    \
			flood->sent++;                                                                                 \
		}                                                                                                      \
	})

SEC("tc")
int send_one(void *ctx)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct flood *flood = bpf_map_lookup_elem(&floods, &cpu);

	if (!flood)
		return 0;
	switch (flood->is_mixed ? bpf_get_prandom_u32() % 4 : 0) {
	case 0:
		send(koord_reclaim, KOORD_RECLAIM, delta_ns);
		break;
	case 1:
		send(koord_oom_kill, KOORD_OOM_KILL, total_vm_pages);
		break;
	case 2:
		send(koord_cgroup, KOORD_CGROUP_MKDIR, parent_id);
		break;
	default:
		send(koord_kswapd, KOORD_KSWAPD, delta_ns);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
