/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What user space reads and writes of the scheduler's object; koordebpf/events/run_queue.py names every field again and is
 * checked against its BTF. cgroup_id is that of a cgroup in the *cpu* controller's hierarchy. Times are CLOCK_MONOTONIC.
 */
#ifndef KOORD_SCHED_H
#define KOORD_SCHED_H

#define KOORD_SCHED_SLOTS 32	/* slot i counts waits of [2^i, 2^(i+1)) µs; slot 0 also those below 1 µs */

enum koord_sched_kind {
	KOORD_LATENCY_SENSITIVE = 1,
	KOORD_BEST_EFFORT = 2,
};

/* Value of the map `sched_groups`, keyed by cgroup_id. User space makes and removes them. */
struct koord_sched_group {
	__u32 kind;		/* enum koord_sched_kind; the rest is of latency-sensitive ones */
	__u32 reserved;
	__u64 count;		/* of the waits that were sampled */
	__u64 total_ns;
	__u32 hist[KOORD_SCHED_SLOTS];
};

/* What user space may change while the programs run; one element. */
struct koord_sched_settings {
	__u64 threshold_ns;	/* a wait from this on is sent */
	__u64 quiet_ns;		/* but none so soon after another */
	__u64 sent_ns;		/* written by the programs: when the last one was */
	__u32 skip_mask;	/* 2^n - 1: one of 2^n wake-ups of each CPU is looked at */
	__u32 reserved;
};

/* What the programs did on one CPU, in a line of its cache: an element of the map `sched_cpus`. */
struct koord_sched_cpu {
	__u64 runs;
	__u64 timed_runs;	/* of them: those that looked at the clock */
	__u64 timed_ns;		/* what those took */
	__u64 wakeups;		/* and tasks that were preempted; one of `skip_mask` + 1 is looked at */
	__u64 reserved[4];
};

/* A latency-sensitive task came to run and had waited long. */
struct koord_run_queue_wait {
	__u64 ts_ns;
	__u64 cgroup_id;
	__u64 delta_ns;
	__u64 be_cgroup_id;	/* of the task that ran before it on that CPU; 0: that was no best-effort one */
	__u32 tid;
	__u32 reserved;
};

#endif
