// SPDX-License-Identifier: Apache-2.0
/*
 * One task that stalls in many cgroups: it joins FOLDER/0 to FOLDER/COUNT-1 in turn and asks each for a huge page that
 * does not fit, which is up to 17 reclaim episodes. Their limits must be below 2 MiB; needs huge pages by madvise.
 * EVENT_ID is storm's.
 */
#include "load.h"
#include "counter.h"
#include "huge.h"

#define MAX_COUNT 16384

static const char text[] = "usage: visit FOLDER COUNT EVENT_ID LAST_PROCS_FILE\n"
			   "  COUNT at most 16384; EVENT_ID 0: count nothing; joins LAST_PROCS_FILE at the end\n";

int main(int argc, char **argv)
{
	char procs_file[PATH_MAX];
	unsigned long count;
	char *place;
	int counter;

	usage_text = text;
	begin();
	if (argc != 5)
		usage();
	count = number(argv[2], MAX_COUNT);
	counter = open_counter(number(argv[3], INT_MAX));
	place = place_of_huge_page();
	say("ready");
	for (unsigned long i = 0; i < count; i++) {
		if (snprintf(procs_file, sizeof(procs_file), "%s/%lu/cgroup.procs", argv[1], i) >=
		    (int)sizeof(procs_file))
			usage();
		join(procs_file);
		fault_huge_page_in(place);
	}
	join(argv[4]);
	say_count(counter);
	say("done");
	return 0;
}
