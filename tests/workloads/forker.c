// SPDX-License-Identifier: Apache-2.0
/*
 * A pod whose processes come and go faster than they can be listed: COUNT children in all, at most WIDTH alive, each
 * living MILLISECONDS. What kills a cgroup must get all of them.
 */
#include "load.h"

#define MAX_COUNT 100000
#define MAX_WIDTH 256
#define NS_PER_MS 1000000UL

static const char text[] =
	"usage: forker COUNT WIDTH MILLISECONDS [PROCS_FILE]\n"
	"  COUNT at most 100000, WIDTH 1 to 256, MILLISECONDS at most 60000; joins PROCS_FILE first\n";

int main(int argc, char **argv)
{
	unsigned long count, width, ms, alive = 0;

	usage_text = text;
	begin();
	if (argc != 4 && argc != 5)
		usage();
	count = number(argv[1], MAX_COUNT);
	width = number(argv[2], MAX_WIDTH);
	ms = number(argv[3], 60000);
	if (!width)
		usage();
	if (argc == 5)
		join(argv[4]);

	say("ready");
	for (unsigned long i = 0; i < count; i++) {
		pid_t pid;

		if (alive == width) {
			wait(NULL);
			alive--;
		}
		pid = fork();
		if (pid < 0)
			die("fork");
		if (pid == 0) {
			alarm(MAX_SECONDS);
			sleep_until(now_ns() + ms * NS_PER_MS);
			_exit(0);
		}
		alive++;
	}
	while (wait(NULL) > 0)
		;
	say("done");
	return 0;
}
