/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes on one CPU that wake each other through pipes: nothing but wake-ups and switches. Says how many
 * messages there were and the CPU time that both took.
 */
#include "load.h"
#include <sched.h>
#include <sys/resource.h>

#define NS_PER_MS 1000000UL

static void pass_on(int from, int to)
{
	char byte;

	while (read(from, &byte, 1) == 1 && write(to, &byte, 1) == 1)
		;
	_exit(0);
}

static uint64_t used_ns(int who)
{
	struct rusage usage;

	getrusage(who, &usage);
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * NS_PER_S +
	       (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000UL;
}

int main(int argc, char **argv)
{
	unsigned long messages = 0, pace = 0;
	int there[2], back[2];
	uint64_t end_ns, next_ns;
	cpu_set_t cpus;
	char byte = 0;
	pid_t child;

	usage_text = "usage: pingpong CGROUP.PROCS CPU MILLISECONDS [MESSAGES_PER_MILLISECOND]\n";
	if (argc != 4 && argc != 5)
		usage();
	if (argc == 5)
		pace = number(argv[4], 100000);
	begin();
	join(argv[1]);
	CPU_ZERO(&cpus);
	CPU_SET(number(argv[2], CPU_SETSIZE - 1), &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus) || pipe(there) || pipe(back))
		die("a CPU and two pipes");
	child = fork();
	if (child < 0)
		die("fork");
	if (child == 0) {
		close(there[1]);
		close(back[0]);
		pass_on(there[0], back[1]);
	}
	close(there[0]);
	close(back[1]);
	next_ns = now_ns();
	end_ns = next_ns + number(argv[3], MAX_SECONDS * 1000) * NS_PER_MS;
	do {
		unsigned long batch = pace ? pace : 200;

		for (unsigned long i = 0; i < batch; i += 2)
			if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
				die("the pipes");
		messages += batch;
		next_ns += NS_PER_MS;
		if (pace)
			sleep_until(next_ns);
	} while (now_ns() < end_ns);
	close(there[1]);
	if (waitpid(child, NULL, 0) != child)
		die("wait");
	printf("messages %lu\n", messages);
	printf("cpu_ns %lu\n", (unsigned long)(used_ns(RUSAGE_SELF) + used_ns(RUSAGE_CHILDREN)));
	return 0;
}
