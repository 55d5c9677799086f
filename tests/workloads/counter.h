/* SPDX-License-Identifier: Apache-2.0 */
/* How often this task met a tracepoint, by a perf counter of its own: a count that no BPF program has a part in. */
#ifndef COUNTER_H
#define COUNTER_H

#include "load.h"
#include <linux/perf_event.h>
#include <sys/syscall.h>

/* `event_id` is the number in the tracepoint's file `id`; with 0 nothing is counted. */
static inline int open_counter(unsigned long event_id)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_TRACEPOINT,
		.size = sizeof(attr),
		.config = event_id,
	};
	int fd;

	if (!event_id)
		return -1;
	fd = syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
	if (fd < 0)
		die("perf_event_open");
	return fd;
}

static inline void say_count(int counter)
{
	uint64_t episodes;

	if (counter < 0)
		return;
	if (read(counter, &episodes, sizeof(episodes)) != sizeof(episodes))
		die("the counter");
	printf("episodes %lu\n", (unsigned long)episodes);
}

#endif
