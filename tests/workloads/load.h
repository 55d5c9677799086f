/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the known loads share: checked arguments, the clock that BPF records use, joining a cgroup, and the two bounds
 * that no argument lifts: 6 GiB and ten minutes.
 */
#ifndef LOAD_H
#define LOAD_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define MIB (1UL << 20)
#define NS_PER_S 1000000000UL
#define MAX_MIB 6144
#define MAX_SECONDS 600
#define EXIT_USAGE 2

static const char *usage_text;

__attribute__((noreturn)) static inline void usage(void)
{
	fputs(usage_text, stderr);
	exit(EXIT_USAGE);
}

__attribute__((noreturn)) static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

/* The whole text as a number of 0 to max, or the usage. */
static inline unsigned long number(const char *text, unsigned long max)
{
	char *end;
	unsigned long value;

	if (!text || *text < '0' || *text > '9')
		usage();
	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno || *end || value > max)
		usage();
	return value;
}

static inline uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static inline void sleep_until(uint64_t deadline_ns)
{
	struct timespec until = {.tv_sec = deadline_ns / NS_PER_S, .tv_nsec = deadline_ns % NS_PER_S};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
}

static inline uint64_t cpu_ns(void)
{
	struct timespec used;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return used.tv_sec * NS_PER_S + used.tv_nsec;
}

/* Use so much CPU time, however long that takes. */
static inline void work(uint64_t ns)
{
	uint64_t end = cpu_ns() + ns;

	while (cpu_ns() < end)
		;
}

/* Join the cgroup whose cgroup.procs this is. */
static inline void join(const char *procs_file)
{
	int fd = open(procs_file, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, "0", 1) != 1)
		die(procs_file);
	close(fd);
}

/* No load outlives its test. */
static inline void begin(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(MAX_SECONDS);
	setvbuf(stdout, NULL, _IOLBF, 0);
}

static inline void say(const char *what)
{
	printf("%s %lu\n", what, (unsigned long)now_ns());
}

/* An unlinked file of `bytes`, written in full. */
static inline int scratch_file(const char *folder, size_t bytes)
{
	static char block[MIB];
	char path[PATH_MAX];
	int fd;

	if (snprintf(path, sizeof(path), "%s/load.XXXXXX", folder) >= (int)sizeof(path))
		usage();
	fd = mkstemp(path);
	if (fd < 0)
		die(path);
	unlink(path);
	memset(block, 1, sizeof(block));
	for (size_t done = 0; done < bytes; done += MIB)
		if (write(fd, block, MIB) != (ssize_t)MIB)
			die("write of the scratch file");
	return fd;
}

#endif
