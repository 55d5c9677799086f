// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * All programs as one object, so that libbpf reads the kernel's BTF once and not for each topic. What the running kernel cannot
 * have, user space leaves out. bcc puts the files together itself. The most likely to be refused come first: a refusal makes user space start over.
 */
#include "memstall.bpf.c"
#include "compaction.bpf.c"
#include "reclaim.bpf.c"
#include "oom.bpf.c"
#include "cgroups.bpf.c"
#include "memcg_iter.bpf.c"

KEEP_LICENSE("Dual BSD/GPL");
