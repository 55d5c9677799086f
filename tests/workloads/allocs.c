// SPDX-License-Identifier: Apache-2.0
/*
 * A service each of whose requests maps MIB of new memory, writes to it and unmaps it: one comes each EVERY_MS.
 * Each 10 s it says how long its tasks waited for memory by the PSI file of their cgroup, and what a request took.
 */
#include "load.h"

#define MAX_MS 10000
#define NS_PER_MS 1000000UL
#define US_PER_MS 1000.0
#define WINDOW_NS (10 * NS_PER_S)
#define MAX_REQUESTS 8192

static const char text[] = "usage: allocs MIB EVERY_MS SECONDS PRESSURE_FILE [PROCS_FILE]\n"
			   "  MIB at most 6144, EVERY_MS at most 10000, SECONDS at most 600; joins PROCS_FILE first\n";

static uint64_t took_ns[MAX_REQUESTS];

static int by_size(const void *one, const void *other)
{
	uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;

	return (a > b) - (a < b);
}

static double percentile_ms(size_t count, unsigned int percent)
{
	return count ? took_ns[count * percent / 100] / (double)NS_PER_MS : 0;
}

/* In which some task of the cgroup waited, since it was made. */
static unsigned long stalled_us(const char *path)
{
	unsigned long us;
	FILE *file = fopen(path, "re");

	if (!file || fscanf(file, "some avg10=%*f avg60=%*f avg300=%*f total=%lu", &us) != 1)
		die(path);
	fclose(file);
	return us;
}

static void request(size_t bytes, long page_bytes)
{
	char *taken = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (taken == MAP_FAILED)
		die("mmap");
	/* One fault for each page, on every machine. */
	madvise(taken, bytes, MADV_NOHUGEPAGE);
	for (size_t at = 0; at < bytes; at += page_bytes)
		((volatile char *)taken)[at] = 1;
	munmap(taken, bytes);
}

int main(int argc, char **argv)
{
	unsigned long mib, every_ms, before_us;
	uint64_t due, end, until, began;
	size_t count;

	usage_text = text;
	begin();
	if (argc != 5 && argc != 6)
		usage();
	mib = number(argv[1], MAX_MIB);
	every_ms = number(argv[2], MAX_MS);
	end = number(argv[3], MAX_SECONDS) * NS_PER_S;
	if (!mib || !every_ms)
		usage();
	if (argc == 6)
		join(argv[5]);
	say("ready");
	for (end += due = now_ns(); due < end;) {
		before_us = stalled_us(argv[4]);
		until = due + WINDOW_NS < end ? due + WINDOW_NS : end;
		for (count = 0; due<until; due = due> now_ns() ? due : now_ns()) {
			sleep_until(due);
			began = now_ns();
			request(mib * MIB, sysconf(_SC_PAGESIZE));
			if (count < MAX_REQUESTS)
				took_ns[count++] = now_ns() - began;
			due += every_ms * NS_PER_MS;
		}
		qsort(took_ns, count, sizeof(*took_ns), by_size);
		printf("%.1f ms waited for memory in 10 s, %zu requests: median %.1f ms, p99 %.1f ms\n",
		       (stalled_us(argv[4]) - before_us) / US_PER_MS, count, percentile_ms(count, 50),
		       percentile_ms(count, 99));
	}
	say("done");
	return 0;
}
