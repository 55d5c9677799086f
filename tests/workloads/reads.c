// SPDX-License-Identifier: Apache-2.0
/*
 * A service that reads 4 KiB at a random place of a file or a disk, past the page cache, each 5 ms. After FIRST
 * seconds, and then each 5 s, it says what a read took; and both, once that is half of what it took at first.
 */
#include "load.h"

#define BLOCK 4096
#define EVERY_NS 5000000UL
#define WINDOW_NS (5 * NS_PER_S)
#define MAX_READS 131072
#define LEAST_READS 10
#define NS_PER_MS 1000000.0
#define BETTER 2

static const char text[] = "usage: reads FILE FIRST SECONDS [PROCS_FILE]\n"
			   "  at most 600 seconds; joins PROCS_FILE first\n";

static uint64_t took_ns[MAX_READS];

static int by_size(const void *one, const void *other)
{
	uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;

	return (a > b) - (a < b);
}

/* Reads until the window ends, ten at least; returns their 99th percentile in ms. */
static double serve(int fd, size_t blocks, void *buffer, uint64_t end)
{
	uint64_t due = now_ns(), began;
	size_t count = 0;

	while (count < MAX_READS && (count < LEAST_READS || now_ns() < end)) {
		began = now_ns();
		if (pread(fd, buffer, BLOCK, (off_t)((size_t)random() % blocks) * BLOCK) != BLOCK)
			die("read");
		took_ns[count++] = now_ns() - began;
		due = due + EVERY_NS > now_ns() ? due + EVERY_NS : now_ns();
		sleep_until(due);
	}
	qsort(took_ns, count, sizeof(*took_ns), by_size);
	return took_ns[count * 99 / 100] / NS_PER_MS;
}

int main(int argc, char **argv)
{
	uint64_t first_ns, end;
	double p99, first;
	void *buffer;
	off_t bytes;
	int fd;

	usage_text = text;
	begin();
	if (argc != 4 && argc != 5)
		usage();
	first_ns = number(argv[2], MAX_SECONDS) * NS_PER_S;
	end = number(argv[3], MAX_SECONDS) * NS_PER_S;
	if (argc == 5)
		join(argv[4]);
	fd = open(argv[1], O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (fd < 0 || (bytes = lseek(fd, 0, SEEK_END)) < BLOCK)
		die(argv[1]);
	if (posix_memalign(&buffer, BLOCK, BLOCK))
		die("memory");
	say("ready");
	end += now_ns();
	first = serve(fd, bytes / BLOCK, buffer, now_ns() + first_ns);
	printf("p99 of a read %.1f ms\n", first);
	while (now_ns() < end) {
		p99 = serve(fd, bytes / BLOCK, buffer, now_ns() + WINDOW_NS);
		printf("p99 of a read %.1f ms\n", p99);
		if (p99 * BETTER <= first)
			printf("p99 of a read: %.1f ms at first, now %.1f ms\n", first, p99);
	}
	free(buffer);
	say("done");
	return 0;
}
