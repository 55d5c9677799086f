/* SPDX-License-Identifier: Apache-2.0 */
/* A huge page that is asked for again and again at one place. */
#ifndef HUGE_H
#define HUGE_H

#include "load.h"

#define HUGE (2 * MIB)

/* Address space for one huge page, aligned. */
static inline char *place_of_huge_page(void)
{
	char *reserved = mmap(NULL, 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (reserved == MAP_FAILED)
		die("mmap");
	return reserved + (-(uintptr_t)reserved & (HUGE - 1));
}

static inline void fault_huge_page_in(char *place)
{
	/* A fresh mapping each time: the page table of a small page would stay, and no huge page fit there. */
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;

	if (mmap(place, HUGE, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED)
		die("mmap");
	madvise(place, HUGE, MADV_HUGEPAGE);
	*(volatile char *)place = 1;
}

#endif
