// SPDX-License-Identifier: Apache-2.0
/*
 * A service that is idle between requests: every EVERY_MS one comes that takes WORK_MS of CPU time. Each COUNT requests
 * it says how long the slowest of them took, from when it was due.
 */
#include "load.h"

#define MAX_MS 10000
#define MAX_COUNT 10000
#define NS_PER_MS 1000000UL

static const char text[] = "usage: pulse EVERY_MS WORK_MS COUNT SECONDS [PROCS_FILE]\n"
			   "  at most 10000, and 600 seconds; joins PROCS_FILE first\n";

int main(int argc, char **argv)
{
	unsigned long every_ms, work_ms, count, served = 0;
	uint64_t due, end, took, slowest = 0;

	usage_text = text;
	begin();
	if (argc != 5 && argc != 6)
		usage();
	every_ms = number(argv[1], MAX_MS);
	work_ms = number(argv[2], MAX_MS);
	count = number(argv[3], MAX_COUNT);
	due = now_ns();
	end = due + number(argv[4], MAX_SECONDS) * NS_PER_S;
	if (!every_ms || !count)
		usage();
	if (argc == 6)
		join(argv[5]);
	while (now_ns() < end) {
		sleep_until(due);
		work(work_ms * NS_PER_MS);
		took = now_ns() - due;
		slowest = took > slowest ? took : slowest;
		due += every_ms * NS_PER_MS;
		due = due > now_ns() ? due : now_ns();
		if (++served % count == 0) {
			printf("slowest of %lu: %lu ms\n", count, (unsigned long)(slowest / NS_PER_MS));
			slowest = 0;
		}
	}
	return 0;
}
