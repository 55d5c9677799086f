// SPDX-License-Identifier: Apache-2.0
/* A process that does nothing, to give a cgroup a member: joins, tells, sleeps. */
#include "load.h"

static const char text[] = "usage: sleeper SECONDS [PROCS_FILE]\n  SECONDS at most 600; joins PROCS_FILE first\n";

int main(int argc, char **argv)
{
	unsigned long seconds;

	usage_text = text;
	begin();
	if (argc != 2 && argc != 3)
		usage();
	seconds = number(argv[1], MAX_SECONDS);
	if (argc == 3)
		join(argv[2]);
	say("ready");
	sleep_until(now_ns() + seconds * NS_PER_S);
	return 0;
}
