"""memory.numa_stat: what a cgroup with its children holds of each NUMA node's memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from koordebpf.kernel.io.text_file import read_kernel_file
from koordebpf.units import PAGE_BYTES

_NODE = re.compile(r"N([0-9]+)=([0-9]+)")
# Rows of what is no page cache. v1 counts pages of its LRU lists, with tmpfs among the anonymous ones.
_ROWS = {1: ("hierarchical_anon", "hierarchical_unevictable"), 2: ("anon", "shmem")}


def numa_held(directory: Path, version: Literal[1, 2]) -> dict[int, int]:
    """Return the bytes that are not page cache, by NUMA node; none where the kernel has no such file.

    Raises:  CgroupGone: the cgroup was removed. OSError: it cannot be read.
    Source:  mm/memcontrol.c, memory_numa_stat_show (v2, since Linux 5.9); memcg_numa_stat_show (v1).
    """
    held: dict[int, int] = {}
    unit = PAGE_BYTES if version == 1 else 1
    try:
        text = read_kernel_file(directory / "memory.numa_stat").text
    except FileNotFoundError:
        return held
    for line in text.splitlines():
        name = re.split("[ =]", line, maxsplit=1)[0]
        if name in _ROWS[version]:
            for node, amount in _NODE.findall(line):
                held[int(node)] = held.get(int(node), 0) + int(amount) * unit
    return held
