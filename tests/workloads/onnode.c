// SPDX-License-Identifier: Apache-2.0
/* Runs a program whose memory, page cache too, comes from one NUMA node alone: its policy outlives exec. */
#include "load.h"

#include <sys/syscall.h>

static const char text[] = "usage: onnode NODE PROGRAM [ARGUMENT]...\n"
			   "  NODE at most 63; without memory there, the kernel kills what needs it\n";

#define BIND 2 /* MPOL_BIND, linux/mempolicy.h, which not every system has */
#define NODES 64

int main(int argc, char **argv)
{
	unsigned long nodes;

	usage_text = text;
	if (argc < 3)
		usage();
	nodes = 1UL << number(argv[1], NODES - 1);
	/* The kernel reads one bit less than the count says. */
	if (syscall(SYS_set_mempolicy, BIND, &nodes, NODES + 1))
		die("set_mempolicy");
	execvp(argv[2], argv + 2);
	die(argv[2]);
}
