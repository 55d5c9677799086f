// SPDX-License-Identifier: Apache-2.0
/* A pod that holds memory of one kind, most of it in the kernel's hands, until it is killed. */
#include "load.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

static const char text[] =
	"usage: holder --kind KIND --mib TOTAL [--cgroup PROCS_FILE]... [--folder FOLDER] [--hold SECONDS]\n"
	"  --kind    anon, memfd, tmpfs (a file in --folder that stays), hugetlb, sockets (UNIX), pipes, tables (page\n"
	"            tables), dentries (reclaimable), or mixed: a quarter each of anon, sockets, pipes, tables\n"
	"  --mib     memory of that kind, at most 6144\n"
	"  --cgroup  join this cgroup.procs first; may be given again\n"
	"  --hold    seconds to keep it, at most 600; default 60\n"
	"Prints `ready NS` when it holds all of it.\n";

#define CHUNK (64UL << 10)
#define PMD_BYTES (2 * MIB) /* what one page table of x86-64 and of arm64 with 4 KiB pages maps */
#define DENTRY_BYTES 192
#define MAX_FDS (1 << 20)

static char chunk[CHUNK];

static void hold_anon(size_t bytes, int flags)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	if (!(flags & MAP_HUGETLB))
		madvise(memory, bytes, MADV_NOHUGEPAGE);
	memset(memory, 1, bytes);
}

static void fill(int fd, size_t bytes)
{
	for (size_t done = 0; done < bytes; done += CHUNK)
		if (write(fd, chunk, CHUNK) != (ssize_t)CHUNK)
			die("write");
}

static void hold_memfd(size_t bytes)
{
	int fd = memfd_create("holder", 0);

	if (fd < 0)
		die("memfd_create");
	fill(fd, bytes);
}

static void hold_tmpfs(const char *folder, size_t bytes)
{
	char path[PATH_MAX];
	int fd;

	if (!folder || snprintf(path, sizeof(path), "%s/held", folder) >= (int)sizeof(path))
		usage();
	fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
	if (fd < 0)
		die(path);
	fill(fd, bytes);
}

/* Data that no process reads stays in the kernel. A send buffer holds about half of its size in data. */
static void hold_sockets(size_t bytes)
{
	int size = 4 * MIB, pair[2];
	size_t done = 0;

	while (done < bytes) {
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair))
			die("socketpair");
		if (setsockopt(pair[0], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)))
			setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
		for (ssize_t sent; done < bytes && (sent = send(pair[0], chunk, CHUNK, 0)) > 0;)
			done += sent;
	}
}

static void hold_pipes(size_t bytes)
{
	int pair[2];
	size_t done = 0;

	while (done < bytes) {
		if (pipe2(pair, O_NONBLOCK))
			die("pipe2");
		fcntl(pair[1], F_SETPIPE_SZ, (int)MIB);
		for (ssize_t written; done < bytes && (written = write(pair[1], chunk, CHUNK)) > 0;)
			done += written;
	}
}

/* Reading maps the zero page: each 2 MiB cost a page table and nothing else. */
static void hold_tables(size_t bytes)
{
	size_t tables = bytes / sysconf(_SC_PAGESIZE);
	volatile char *memory = mmap(NULL, tables * PMD_BYTES, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		die("mmap of the page tables");
	madvise((void *)memory, tables * PMD_BYTES, MADV_NOHUGEPAGE);
	for (size_t at = 0; at < tables; at++)
		(void)memory[at * PMD_BYTES];
}

/* The kernel remembers names that are not there. */
static void hold_dentries(const char *folder, size_t bytes)
{
	char path[PATH_MAX];
	struct stat found;

	for (size_t at = 0; at < bytes / DENTRY_BYTES; at++) {
		snprintf(path, sizeof(path), "%s/none-%d-%zu", folder ? folder : "/tmp", getpid(), at);
		stat(path, &found);
	}
}

int main(int argc, char **argv)
{
	struct rlimit fds = {MAX_FDS, MAX_FDS};
	const char *kind = NULL, *folder = NULL;
	unsigned long mib = 0, hold_s = 60;
	size_t bytes;

	usage_text = text;
	begin();
	for (int i = 1; i < argc; i += 2) {
		if (i + 1 == argc)
			usage();
		if (!strcmp(argv[i], "--kind"))
			kind = argv[i + 1];
		else if (!strcmp(argv[i], "--mib"))
			mib = number(argv[i + 1], MAX_MIB);
		else if (!strcmp(argv[i], "--folder"))
			folder = argv[i + 1];
		else if (!strcmp(argv[i], "--hold"))
			hold_s = number(argv[i + 1], MAX_SECONDS);
		else if (strcmp(argv[i], "--cgroup"))
			usage();
	}
	if (!kind || !mib)
		usage();
	setrlimit(RLIMIT_NOFILE, &fds); /* refused, the sockets run out and that is said */
	for (int i = 1; i < argc; i += 2)
		if (!strcmp(argv[i], "--cgroup"))
			join(argv[i + 1]);
	bytes = mib * MIB;
	if (!strcmp(kind, "anon"))
		hold_anon(bytes, 0);
	else if (!strcmp(kind, "hugetlb"))
		hold_anon(bytes, MAP_HUGETLB);
	else if (!strcmp(kind, "memfd"))
		hold_memfd(bytes);
	else if (!strcmp(kind, "tmpfs"))
		hold_tmpfs(folder, bytes);
	else if (!strcmp(kind, "sockets"))
		hold_sockets(bytes);
	else if (!strcmp(kind, "pipes"))
		hold_pipes(bytes);
	else if (!strcmp(kind, "tables"))
		hold_tables(bytes);
	else if (!strcmp(kind, "dentries"))
		hold_dentries(folder, bytes);
	else if (!strcmp(kind, "mixed")) {
		hold_anon(bytes / 4, 0);
		hold_sockets(bytes / 4);
		hold_pipes(bytes / 4);
		hold_tables(bytes / 4);
	} else
		usage();
	say("ready");
	sleep_until(now_ns() + hold_s * NS_PER_S);
	return 0;
}
