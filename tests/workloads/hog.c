// SPDX-License-Identifier: Apache-2.0
/* A pod that eats: touches anonymous memory at a set rate, then holds it. */
#include "load.h"

static const char text[] =
	"usage: hog --mib TOTAL [--cgroup PROCS_FILE]... [--rate-mib-s R] [--mark-mib M] [--hold SECONDS]\n"
	"  --mib         memory to touch in all, at most 6144\n"
	"  --cgroup      join this cgroup.procs first; may be given again\n"
	"  --rate-mib-s  MiB a second; 0, the default: as fast as the kernel gives them\n"
	"  --mark-mib    print `mark NS` (CLOCK_MONOTONIC) when this much is touched\n"
	"  --hold        seconds to keep the memory, at most 600; default 0\n"
	"  --huge        1: in huge pages, which one task can touch more than twice as fast\n"
	"  --mark-file FILE --mark-bytes B  print `mark NS` when the number in FILE has come to B\n"
	"  --mark-available-kib K           print `mark NS` when MemAvailable has fallen below K\n"
	"                `touched BYTES` follows either of them\n"
	"SIGTERM is answered with `term NS` and the end.\n";

/* Often enough that the mark comes within 0.1 ms. */
#define MARK_EVERY (MIB / 4)

static unsigned long first_number(int fd, const char *key)
{
	char text[512];
	ssize_t length = pread(fd, text, sizeof(text) - 1, 0);
	const char *at = text;

	if (length < 0)
		die("the file of the mark");
	text[length] = 0;
	if (key && !(at = strstr(text, key)))
		die(key);
	return strtoul(at + (key ? strlen(key) : 0), NULL, 10);
}

/* Whether what is watched has reached its mark; without --mark-file and --mark-available-kib never. */
static int is_reached(int mark_fd, unsigned long mark_bytes, int meminfo_fd, unsigned long available_kib)
{
	if (mark_fd >= 0 && first_number(mark_fd, NULL) >= mark_bytes)
		return 1;
	return meminfo_fd >= 0 && first_number(meminfo_fd, "MemAvailable:") < available_kib;
}

static void on_term(int number)
{
	(void)number;
	/* dprintf has no buffer to share with what was interrupted. */
	dprintf(STDOUT_FILENO, "term %lu\n", (unsigned long)now_ns());
	_exit(0);
}

static int open_read(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		die(path);
	return fd;
}

int main(int argc, char **argv)
{
	unsigned long total_mib = 0, rate_mib_s = 0, mark_mib = 0, hold_s = 0, huge = 0;
	unsigned long mark_bytes = 0, available_kib = 0;
	int mark_fd = -1, meminfo_fd = -1, reported = 0;
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
		else if (!strcmp(argv[i], "--huge"))
			huge = number(argv[i + 1], 1);
		else if (!strcmp(argv[i], "--mark-file"))
			mark_fd = open_read(argv[i + 1]);
		else if (!strcmp(argv[i], "--mark-bytes"))
			mark_bytes = number(argv[i + 1], LONG_MAX);
		else if (!strcmp(argv[i], "--mark-available-kib"))
			available_kib = number(argv[i + 1], LONG_MAX);
		else if (strcmp(argv[i], "--cgroup"))
			usage();
	}
	if (!total_mib || mark_mib > total_mib)
		usage();
	for (int i = 1; i < argc; i += 2)
		if (!strcmp(argv[i], "--cgroup"))
			join(argv[i + 1]);

	if (available_kib)
		meminfo_fd = open_read("/proc/meminfo");
	signal(SIGTERM, on_term);

	memory =
		mmap(NULL, total_mib * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	/* Huge pages make the growth jump by 2 MiB. A kernel without them says EINVAL, which is as good. */
	madvise((void *)memory, total_mib * MIB, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);

	start_ns = now_ns();
	printf("ready %lu\n", (unsigned long)start_ns);
	for (unsigned long mib = 0; mib < total_mib; mib++) {
		if (rate_mib_s)
			sleep_until(start_ns + mib * NS_PER_S / rate_mib_s);
		for (size_t at = mib * MIB; at < (mib + 1) * MIB; at += page_bytes) {
			/* The last page too: what follows it may be a sleep. */
			int is_check = at % MARK_EVERY == 0 || at + page_bytes == (mib + 1) * MIB;

			memory[at] = 1;
			if (is_check && !reported && is_reached(mark_fd, mark_bytes, meminfo_fd, available_kib)) {
				reported = 1;
				/* In one write, which stdio does not promise: it may be killed right after. */
				dprintf(STDOUT_FILENO, "mark %lu\ntouched %lu\n", (unsigned long)now_ns(), at);
			}
		}
		if (mib + 1 == mark_mib)
			say("mark");
	}
	say("done");
	sleep_until(now_ns() + hold_s * NS_PER_S);
	return 0;
}
