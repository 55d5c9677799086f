// SPDX-License-Identifier: Apache-2.0
/*
 * A service that looks up 64 pages of a mapped file at random each millisecond, as an index is looked up. Each 5 s it
 * says how many pages it read from disk and what a request took, and once these are a fifth of the most so far, that.
 */
#include "load.h"

#include <sys/resource.h>

#define PAGES 64
#define EVERY_NS 1000000UL
#define WINDOW_NS (5 * NS_PER_S)
#define MAX_REQUESTS 8192
#define NS_PER_US 1000.0
#define LEAST_READS 100
#define FEWER 5

static const char text[] = "usage: lookups FOLDER MIB SECONDS [PROCS_FILE]\n"
			   "  MIB at most 6144, SECONDS at most 600; joins PROCS_FILE first\n";

static uint64_t took_ns[MAX_REQUESTS];

static int by_size(const void *one, const void *other)
{
	uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;

	return (a > b) - (a < b);
}

/* From disk: a fault that finds the page in memory is a minor one. */
static long pages_read(void)
{
	struct rusage used;

	getrusage(RUSAGE_SELF, &used);
	return used.ru_majflt;
}

static double p99_ms(size_t count)
{
	qsort(took_ns, count, sizeof(*took_ns), by_size);
	return count ? took_ns[count * 99 / 100] / NS_PER_US / 1000 : 0;
}

/* Requests until the window ends; returns how many. */
static size_t serve(volatile char *file, size_t pages, long page_bytes, uint64_t end)
{
	uint64_t due = now_ns(), began;
	volatile char seen;
	size_t count = 0;

	while (now_ns() < end) {
		began = now_ns();
		for (int at = 0; at < PAGES; at++)
			seen = file[(size_t)random() % pages * page_bytes];
		if (count < MAX_REQUESTS)
			took_ns[count++] = now_ns() - began;
		due = due + EVERY_NS > now_ns() ? due + EVERY_NS : now_ns();
		sleep_until(due);
	}
	(void)seen;
	return count;
}

int main(int argc, char **argv)
{
	long page_bytes = sysconf(_SC_PAGESIZE), before, pages, worst = 0;
	double p99, worst_ms = 0;
	unsigned long mib;
	uint64_t now, end;
	char *file;
	int fd;

	usage_text = text;
	begin();
	if (argc != 4 && argc != 5)
		usage();
	mib = number(argv[2], MAX_MIB);
	end = number(argv[3], MAX_SECONDS) * NS_PER_S;
	if (!mib)
		usage();
	if (argc == 5)
		join(argv[4]);
	fd = scratch_file(argv[1], mib * MIB);
	fsync(fd);
	file = mmap(NULL, mib * MIB, PROT_READ, MAP_SHARED, fd, 0);
	if (file == MAP_FAILED)
		die("mmap");
	/* Read-ahead would fetch what is not asked for. */
	madvise(file, mib * MIB, MADV_RANDOM);
	say("ready");
	for (end += now_ns(); (now = now_ns()) < end;) {
		before = pages_read();
		p99 = p99_ms(
			serve(file, mib * MIB / page_bytes, page_bytes, now + WINDOW_NS < end ? now + WINDOW_NS : end));
		pages = pages_read() - before;
		printf("%ld pages read in 5 s, p99 %.2f ms\n", pages, p99);
		if (worst >= LEAST_READS && pages * FEWER <= worst)
			printf("pages read in 5 s: %ld at worst, now %ld; p99 %.2f ms then, now %.2f ms\n", worst,
			       pages, worst_ms, p99);
		if (pages > worst) {
			worst = pages;
			worst_ms = p99;
		}
	}
	say("done");
	return 0;
}
