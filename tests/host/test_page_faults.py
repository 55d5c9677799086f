"""Page faults of one cgroup."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, MemoryHierarchy
from koordebpf.units import PAGE_BYTES
from tests.host.conftest import make_child
from tests.host.provoke import N, start_in

PAGES = 100 * N
BATCH = 64  # include/linux/memcontrol.h MEMCG_CHARGE_BATCH: what a CPU may hold back


def touch() -> None:
    with mmap.mmap(-1, PAGES * PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(PAGES):
            memory[page * PAGE_BYTES] = 1


def test_the_faults_of_a_task_are_its_cgroups(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> None:
    child = make_child(memory_cgroup, "container")
    batch = BATCH * (os.cpu_count() or 1)
    with CgroupMemory(child, hierarchy.version) as files, CgroupMemory(memory_cgroup, hierarchy.version) as parent:
        _, status, usage = os.wait4(start_in(child, touch), 0)
        faults = files.page_faults()
        assert status == 0
        assert PAGES - batch <= faults.pgfault <= usage.ru_minflt + usage.ru_majflt + batch
        assert faults.pgmajfault <= usage.ru_majflt + batch
        assert parent.page_faults().pgfault >= faults.pgfault
