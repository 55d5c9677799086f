"""The memory hierarchy of the running kernel: what is read there is what was made there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koordebpf.attribution.index import CgroupIndex
from koordebpf.errors import CgroupGone
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, MemoryHierarchy, cgroup_id, walk
from koordebpf.kernel.proc.meminfo import Meminfo
from koordebpf.units import MIB
from tests.host.conftest import make_child

CONTAINER = "a" * 64


def test_a_walk_finds_every_cgroup_and_the_index_whose_it_is(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> None:
    container = memory_cgroup / "kubepods/burstable/podu-1" / CONTAINER
    container.mkdir(parents=True)
    walked = list(walk(memory_cgroup, hierarchy.mount_point))
    assert len(walked) == 5
    for own_id, parent_id, path in walked:
        assert own_id == cgroup_id(hierarchy.mount_point / path)
        assert parent_id == cgroup_id((hierarchy.mount_point / path).parent)
    index = CgroupIndex()
    index.replace_all(walked)
    owner = index.owner(cgroup_id(container))
    assert owner is not None
    assert (owner.pod_uid, owner.kube_qos, owner.container_id) == ("u-1", "Burstable", CONTAINER)
    assert hierarchy.mount_point / owner.path == container


def test_a_limit_is_read_as_written_and_none_is_none(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> None:
    with CgroupMemory(memory_cgroup, hierarchy.version) as memory:
        assert memory.limit_bytes() is None
        (memory_cgroup / ("memory.max" if hierarchy.version == 2 else "memory.limit_in_bytes")).write_text(
            f"{16 * MIB}"
        )
        assert memory.limit_bytes() == 16 * MIB
        assert memory.oom_kills() == 0


def test_memory_of_a_process_shows(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> None:
    ready, done = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        (memory_cgroup / "cgroup.procs").write_text(str(os.getpid()))
        held = bytearray(b"x" * (16 * MIB))
        os.write(ready[1], b"r")
        os.read(done[0], 1)
        os._exit(len(held) & 0)
    os.read(ready[0], 1)
    try:
        with CgroupMemory(memory_cgroup, hierarchy.version) as memory:
            stat = memory.read()
    finally:
        os.write(done[1], b"d")
        os.waitpid(pid, 0)
        for fd in (*ready, *done):
            os.close(fd)
    assert stat.usage_bytes >= 16 * MIB
    # The last few pages of each CPU wait in a batch before they reach the LRU lists.
    assert stat.inactive_anon_bytes + stat.active_anon_bytes + stat.unevictable_bytes >= 15 * MIB
    assert (stat.slab_reclaimable_bytes is None) == (hierarchy.version == 1)


def test_a_removed_cgroup_is_gone_not_empty(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> None:
    child = make_child(memory_cgroup, "child")
    with CgroupMemory(child, hierarchy.version) as kept:
        kept.read()
        child.rmdir()
        for read in (kept.read, kept.usage_bytes, kept.limit_bytes, kept.oom_kills):
            with pytest.raises(CgroupGone):
                read()
        # One of the same name is another cgroup, which the kept fds do not read.
        child.mkdir()
        with pytest.raises(CgroupGone):
            kept.read()


def test_meminfo_is_read_again_through_one_fd() -> None:
    with Meminfo() as meminfo:
        first, second = meminfo.read(), meminfo.read()
    assert first.mem_total_bytes == second.mem_total_bytes
    assert 0 < first.used_bytes < first.mem_total_bytes
