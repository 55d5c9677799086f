// SPDX-License-Identifier: Apache-2.0
/* Fills the page cache and nothing else: writes an unlinked file and reads it again until the time is over. */
#include "load.h"

static const char text[] = "usage: cacheflood FOLDER MIB SECONDS [PROCS_FILE]\n"
			   "  MIB at most 6144, SECONDS at most 600; joins PROCS_FILE first\n";

int main(int argc, char **argv)
{
	static char block[MIB];
	unsigned long mib, seconds;
	uint64_t end_ns;
	int fd;

	usage_text = text;
	begin();
	if (argc != 4 && argc != 5)
		usage();
	mib = number(argv[2], MAX_MIB);
	seconds = number(argv[3], MAX_SECONDS);
	if (!mib)
		usage();
	if (argc == 5)
		join(argv[4]);

	say("ready");
	end_ns = now_ns() + seconds * NS_PER_S;
	fd = scratch_file(argv[1], mib * MIB);
	/* Dirty pages cannot be dropped; a flood of clean ones is what is meant. */
	fsync(fd);
	say("filled");
	while (now_ns() < end_ns)
		for (unsigned long i = 0; i < mib && now_ns() < end_ns; i++)
			if (pread(fd, block, MIB, i * MIB) != (ssize_t)MIB)
				die("read of the scratch file");
	say("done");
	return 0;
}
