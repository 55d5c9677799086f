"""Protect the agent from reclaim (mlockall) and from the OOM killer (oom_score_adj).

An evictor that is itself reclaimed or killed is useless at the moment it exists for.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from pathlib import Path

# include/uapi/asm-generic/mman.h. ONFAULT (since v4.4) locks pages as they are touched: without it the address space of
# libbpf's and Python's mappings would be faulted in as a whole.
MCL_CURRENT = 1
MCL_FUTURE = 2
MCL_ONFAULT = 4

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # malloc.h

OOM_SCORE_ADJ = -999  # the kubelet's own value; -1000 would exempt the agent even from its own leak


def lock_memory() -> str | None:
    """Lock present and future pages into memory; return why not, or None. After the first tick, so that it is warm."""
    gc.collect()
    gc.freeze()
    libc = ctypes.CDLL(None, use_errno=True)
    # What libbpf took to read the kernel's BTF is free again but still resident, 11 MiB that would be locked for ever.
    # glibc's call; other libraries have none.
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    if libc.mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) != 0:
        return f"mlockall: {os.strerror(ctypes.get_errno())}: give CAP_IPC_LOCK or raise RLIMIT_MEMLOCK"
    return None


def share_one_arena() -> None:
    """Let all threads take memory from one heap. Before the first thread.

    Each thread otherwise gets a heap of its own that never shrinks: 0.9 MiB in all (measured). Threads that hold the
    interpreter's lock do not compete for it.
    Source: mallopt(3), malloc.h; other libraries than glibc have no such thing.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_ARENA_MAX, 1)


def return_large_blocks() -> None:
    """Let blocks of 256 KiB and more go back to the kernel when they are freed.

    glibc keeps blocks as large as the largest that was ever freed, and locked memory cannot be trimmed later.
    Source: mallopt(3), M_MMAP_THRESHOLD; other libraries than glibc have no such thing.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, 256 << 10)


def open_all_files() -> int:
    """Raise RLIMIT_NOFILE to what the process may have, as every Go program does; return that.

    The soft limit is 1024 on most systems, for programs that use select(2). Kept fds of the memory and CPU files of a
    few hundred pods are more.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def set_oom_score_adj(score: int = OOM_SCORE_ADJ) -> str | None:
    """Set this process's oom_score_adj; return why not, or None."""
    try:
        Path("/proc/self/oom_score_adj").write_text(str(score))
    except OSError as error:
        return f"oom_score_adj: {error.strerror}: give CAP_SYS_RESOURCE"
    return None
