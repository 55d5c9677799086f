// SPDX-License-Identifier: Apache-2.0
/*
 * As many reclaim episodes as one task can make. Its cgroup must have a limit below a huge page's 2 MiB; such a page is
 * faulted in over and over. It does not fit: the kernel tries to reclaim up to 17 times for each (mm/memcontrol.c
 * try_charge_memcg), finds nothing, and gives a small page in its place, so that it never has to kill.
 * Needs huge pages by madvise.
 *
 * With EVENT_ID, the id of a tracepoint, a perf counter tells how often this task met it. `cpu` is its CPU time in ns
 * between `ready` and `done`.
 */
#include "load.h"
#include "counter.h"
#include "huge.h"

#define NS_PER_MS 1000000UL

static const char text[] =
	"usage: storm MILLISECONDS EVENT_ID USAGE_FILE LIMIT_BYTES PROCS_FILE\n"
	"  MILLISECONDS at most 600000, EVENT_ID 0: count nothing; USAGE_FILE tells what the cgroup holds\n";

static uint64_t own_cpu_ns(void)
{
	struct timespec used;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return used.tv_sec * NS_PER_S + used.tv_nsec;
}

static unsigned long usage_bytes(int fd)
{
	char digits[32] = {};

	if (pread(fd, digits, sizeof(digits) - 1, 0) <= 0)
		die("the usage file");
	return strtoul(digits, NULL, 10);
}

int main(int argc, char **argv)
{
	unsigned long ms, event_id, limit_bytes;
	int usage_fd, counter;
	uint64_t end_ns, cpu_ns;
	char *place;

	usage_text = text;
	begin();
	if (argc != 6)
		usage();
	ms = number(argv[1], MAX_SECONDS * 1000);
	event_id = number(argv[2], INT_MAX);
	limit_bytes = number(argv[4], HUGE);
	if (limit_bytes >= HUGE)
		usage();
	usage_fd = open(argv[3], O_RDONLY | O_CLOEXEC);
	if (usage_fd < 0)
		die(argv[3]);
	join(argv[5]);
	counter = open_counter(event_id);
	place = place_of_huge_page();

	say("ready");
	cpu_ns = own_cpu_ns();
	for (end_ns = now_ns() + ms * NS_PER_MS; now_ns() < end_ns;) {
		fault_huge_page_in(place);
		/* Page tables are freed after a grace period, which is long on a busy machine. */
		while (usage_bytes(usage_fd) > limit_bytes / 2 && now_ns() < end_ns)
			usleep(1000);
	}
	say_count(counter);
	printf("cpu %lu\n", (unsigned long)(own_cpu_ns() - cpu_ns));
	say("done");
	return 0;
}
