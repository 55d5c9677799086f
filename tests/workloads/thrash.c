// SPDX-License-Identifier: Apache-2.0
/*
 * A working set larger than its cgroup allows: maps a file of MIB and walks it for SECONDS. In a cgroup with a lower
 * limit every page is reclaimed before it is met again, and the kernel never needs to kill.
 *
 * Pages of a mapping that is read at random have no recency for the multi-generational LRU (vma_has_recency,
 * include/linux/mm_inline.h): a wait for one of them is no pressure. With `recent` it is.
 */
#include "load.h"

static const char text[] = "usage: thrash FOLDER MIB SECONDS [PROCS_FILE [recent]]\n"
			   "  MIB at most 6144, SECONDS at most 600; joins PROCS_FILE first\n";

int main(int argc, char **argv)
{
	long page_bytes = sysconf(_SC_PAGESIZE);
	unsigned long mib, seconds, walks = 0;
	volatile char *file, seen;
	uint64_t end_ns;
	int fd;

	usage_text = text;
	begin();
	if (argc < 4 || argc > 6 || (argc == 6 && strcmp(argv[5], "recent")))
		usage();
	mib = number(argv[2], MAX_MIB);
	seconds = number(argv[3], MAX_SECONDS);
	if (!mib)
		usage();
	if (argc >= 5)
		join(argv[4]);

	fd = scratch_file(argv[1], mib * MIB);
	fsync(fd);
	file = mmap(NULL, mib * MIB, PROT_READ, MAP_SHARED, fd, 0);
	if (file == MAP_FAILED)
		die("mmap");
	/* Read-ahead would fetch what is not asked for. */
	if (argc != 6)
		madvise((void *)file, mib * MIB, MADV_RANDOM);

	say("ready");
	end_ns = now_ns() + seconds * NS_PER_S;
	for (; now_ns() < end_ns; walks++)
		for (size_t at = 0; at < mib * MIB; at += page_bytes) {
			seen = file[at];
			if (at % MIB == 0 && now_ns() >= end_ns)
				break;
		}
	(void)seen;
	printf("walks %lu\n", walks);
	say("done");
	return 0;
}
