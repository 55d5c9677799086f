// SPDX-License-Identifier: Apache-2.0
/* A pod that eats: touches anonymous memory at a set rate, then holds it. */
#include "load.h"

static const char text[] =
	"usage: hog --mib TOTAL [--cgroup PROCS_FILE]... [--rate-mib-s R] [--mark-mib M] [--hold SECONDS]\n"
	"  --mib         memory to touch in all, at most 6144\n"
	"  --cgroup      join this cgroup.procs first; may be given again\n"
	"  --rate-mib-s  MiB a second; 0, the default: as fast as the kernel gives them\n"
	"  --mark-mib    print `mark NS` (CLOCK_MONOTONIC) when this much is touched\n"
	"  --hold        seconds to keep the memory, at most 600; default 0\n";

int main(int argc, char **argv)
{
	unsigned long total_mib = 0, rate_mib_s = 0, mark_mib = 0, hold_s = 0;
	long page_bytes = sysconf(_SC_PAGESIZE);
	volatile char *memory;
	uint64_t start_ns;

	usage_text = text;
	begin();
	for (int i = 1; i < argc; i += 2) {
		if (i + 1 == argc)
			usage();
		if (!strcmp(argv[i], "--mib"))
			total_mib = number(argv[i + 1], MAX_MIB);
		else if (!strcmp(argv[i], "--rate-mib-s"))
			rate_mib_s = number(argv[i + 1], 1 << 20);
		else if (!strcmp(argv[i], "--mark-mib"))
			mark_mib = number(argv[i + 1], MAX_MIB);
		else if (!strcmp(argv[i], "--hold"))
			hold_s = number(argv[i + 1], MAX_SECONDS);
		else if (strcmp(argv[i], "--cgroup"))
			usage();
	}
	if (!total_mib || mark_mib > total_mib)
		usage();
	for (int i = 1; i < argc; i += 2)
		if (!strcmp(argv[i], "--cgroup"))
			join(argv[i + 1]);

	memory =
		mmap(NULL, total_mib * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	/* Huge pages would make the growth jump by 2 MiB. A kernel without them says EINVAL, which is as good. */
	madvise((void *)memory, total_mib * MIB, MADV_NOHUGEPAGE);

	start_ns = now_ns();
	printf("ready %lu\n", (unsigned long)start_ns);
	for (unsigned long mib = 0; mib < total_mib; mib++) {
		if (rate_mib_s)
			sleep_until(start_ns + mib * NS_PER_S / rate_mib_s);
		for (size_t at = mib * MIB; at < (mib + 1) * MIB; at += page_bytes)
			memory[at] = 1;
		if (mib + 1 == mark_mib)
			say("mark");
	}
	say("done");
	sleep_until(now_ns() + hold_s * NS_PER_S);
	return 0;
}
