// SPDX-License-Identifier: Apache-2.0
/*
 * A service that sleeps until a burst of requests comes: every EVERY_MS, for BURST_MS, each of PROCESSES gets one each
 * PERIOD_US that takes WORK_US of CPU time. Of each request of a burst's first FIRST_MS it prints two numbers: how late
 * it was started, and how long it took from when it was due, in µs.
 */
#include "load.h"

#define MAX_MS 60000
#define MAX_US 1000000
#define MAX_PROCESSES 64
#define MAX_BURSTS 1000
#define NS_PER_MS 1000000UL
#define NS_PER_US 1000UL

static const char text[] =
	"usage: requests EVERY_MS BURST_MS FIRST_MS PERIOD_US WORK_US PROCESSES BURSTS [PROCS_FILE]...\n"
	"  joins each PROCS_FILE first\n";

/* One line is one write: lines of several processes are not mixed. */
static void report(uint64_t late_ns, uint64_t took_ns)
{
	char line[64];
	int length = snprintf(line, sizeof(line), "%lu %lu\n", (unsigned long)(late_ns / NS_PER_US),
			      (unsigned long)(took_ns / NS_PER_US));

	if (write(STDOUT_FILENO, line, length) != length)
		die("write");
}

static void serve(uint64_t first, char **argv)
{
	uint64_t every = number(argv[1], MAX_MS) * NS_PER_MS, burst = number(argv[2], MAX_MS) * NS_PER_MS;
	uint64_t shown = number(argv[3], MAX_MS) * NS_PER_MS, period = number(argv[4], MAX_US) * NS_PER_US;
	uint64_t takes = number(argv[5], MAX_US) * NS_PER_US, started;
	unsigned long bursts = number(argv[7], MAX_BURSTS);

	begin();
	for (unsigned long at = 0; at < bursts; at++) {
		uint64_t start = first + at * every, due = start;

		while (due < start + burst) {
			sleep_until(due);
			started = now_ns();
			work(takes);
			if (due < start + shown)
				report(started - due, now_ns() - due);
			due += period;
			if (now_ns() > start + burst)
				break;
		}
	}
	exit(0);
}

int main(int argc, char **argv)
{
	unsigned long processes;
	uint64_t first;
	int status, failed = 0;

	usage_text = text;
	begin();
	if (argc < 8)
		usage();
	processes = number(argv[6], MAX_PROCESSES);
	if (!number(argv[4], MAX_US) || !processes)
		usage();
	for (int at = 8; at < argc; at++)
		join(argv[at]);
	first = now_ns() + number(argv[1], MAX_MS) * NS_PER_MS;
	for (unsigned long each = 0; each < processes; each++)
		if (!fork())
			serve(first, argv);
	while (wait(&status) > 0)
		failed |= status;
	return failed ? 1 : 0;
}
