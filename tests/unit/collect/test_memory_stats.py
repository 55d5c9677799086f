from __future__ import annotations

import pytest

from koordebpf.collect.memory.files import with_stat
from koordebpf.kernel.cgroup.hierarchy import CgroupMemoryStat
from koordebpf.state.measured import MemoryParts

SCANNED = MemoryParts(1000, 100, 200, 50, 50, 0, kernel_bytes=600)


def stat(*, anon: int = 300, file: int = 100, slab: int | None = None, hugetlb: int | None = None) -> CgroupMemoryStat:
    return CgroupMemoryStat(1000, anon, 0, file, 0, 0, 7, slab, hugetlb)


@pytest.mark.parametrize(
    ("read", "kernel", "anon", "file"),
    [
        (stat(), 600, 300, 100),
        (stat(slab=150), 450, 300, 100),
        (stat(file=400), 300, 300, 400),  # page cache of a removed container
        (stat(anon=500), 400, 500, 100),  # files that it left on the pod's tmpfs
        (stat(file=20, anon=10), 600, 300, 100),  # behind: the scan is exact
        (stat(hugetlb=256), 344, 300, 100),
        (stat(slab=900), 0, 300, 100),
    ],
)
def test_what_of_the_rest_is_the_kernels(read: CgroupMemoryStat, kernel: int, anon: int, file: int) -> None:
    memory = with_stat(SCANNED, read, "machine")
    assert memory.kernel_bytes == kernel
    assert memory.koordinator_used_bytes == anon
    assert memory.inactive_file_bytes + memory.active_file_bytes == file
    assert (memory.usage_bytes, memory.shmem_bytes) == (1000, 7)


def test_a_node_cgroup_is_charged_less_without_huge_pages() -> None:
    assert with_stat(SCANNED, stat(hugetlb=256), "cgroup").kernel_bytes == 600


def test_slab_of_the_scan_counts_where_the_file_does_not_show_it() -> None:
    scanned = MemoryParts(1000, 100, 200, 50, 50, 0, slab_reclaimable_bytes=80, kernel_bytes=520)
    assert with_stat(scanned, stat(), "machine").kernel_bytes == 520
    assert with_stat(scanned, stat(slab=200), "machine").kernel_bytes == 400
