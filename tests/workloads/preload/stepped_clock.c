// SPDX-License-Identifier: Apache-2.0
/*
 * Clocks that a test sets, for one process: LD_PRELOAD=stepped_clock.so STEPPED_CLOCK=FILE.
 *
 * FILE holds two int64_t, the seconds that CLOCK_REALTIME and CLOCK_BOOTTIME are ahead; they may change at any moment.
 * No namespace has a wall clock of its own, a process of several threads cannot move to another time namespace, and the
 * machine's clocks are not ours to set.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile struct {
	int64_t realtime_s, boottime_s;
} *ahead;

__attribute__((constructor)) static void map_offset(void)
{
	const char *path = getenv("STEPPED_CLOCK");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*ahead), PROT_READ, MAP_SHARED, fd, 0);

	if (map == MAP_FAILED) {
		perror("STEPPED_CLOCK");
		_exit(1);
	}
	close(fd);
	ahead = map;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int result = syscall(SYS_clock_gettime, clock, now);

	if (!result && clock == CLOCK_REALTIME && ahead)
		now->tv_sec += ahead->realtime_s;
	if (!result && clock == CLOCK_BOOTTIME && ahead)
		now->tv_sec += ahead->boottime_s;
	return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec exact;

	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &exact))
		return -1;
	now->tv_sec = exact.tv_sec;
	now->tv_usec = exact.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *now)
{
	struct timespec exact;

	if (clock_gettime(CLOCK_REALTIME, &exact))
		return -1;
	if (now)
		*now = exact.tv_sec;
	return exact.tv_sec;
}
