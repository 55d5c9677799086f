"""What the scan cannot tell of a pod's memory, from its memory.stat: for the few pods where it matters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import nlargest

import msgspec

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.scope import NodeScope
from koordebpf.errors import CgroupGone, SupportError
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, CgroupMemoryStat
from koordebpf.state.measured import MemoryParts
from koordebpf.units import MIB

_MOST = 16  # Why: 40 µs each; a node is rarely short because of more pods than these
_LEAST_BYTES = 32 * MIB  # Why: page tables, stacks and slab of an ordinary pod
_LEAST_SHARE = 8  # Why: with less than an eighth of the rest the credit is near enough


class MemoryStats:
    """Completes pods' memory: shmem, and of what is on no list of the scan how much is really the kernel's.

    The rest may be reclaimable slab, which the node counts as available, huge pages, which go back to their pool, and
    what removed containers of the pod left behind: page cache, and files on its tmpfs.
    """

    def __init__(self, scope: NodeScope, index: CgroupIndex) -> None:
        self._scope = scope
        self._index = index
        self._files: dict[int, CgroupMemory] = {}

    def complete(self, memories: Mapping[int, MemoryParts], tmpfs: Collection[int] = ()) -> Mapping[int, MemoryParts]:
        """Return `memories` with those completed that need it: with a large rest, or one of `tmpfs`. By cgroup id.

        Cost:    30 µs for each of those, at most `_MOST` and `tmpfs`.
        """
        large = [cgroup_id for cgroup_id, memory in memories.items() if _has_large_rest(memory)]
        wanted = {*nlargest(_MOST, large, lambda cgroup_id: memories[cgroup_id].kernel_bytes or 0)}
        wanted.update(cgroup_id for cgroup_id in tmpfs if cgroup_id in memories)
        for cgroup_id in self._files.keys() - wanted:
            self._files.pop(cgroup_id).close()
        completed = {
            cgroup_id: with_stat(memories[cgroup_id], stat, self._scope.kind)
            for cgroup_id in wanted
            if (stat := self._read(cgroup_id)) is not None
        }
        return {**memories, **completed} if completed else memories

    def _read(self, cgroup_id: int) -> CgroupMemoryStat | None:
        files = self._files.get(cgroup_id)
        if files is None:
            path = self._index.path(cgroup_id)
            if path is None:
                return None
            hierarchy = self._scope.hierarchy
            files = self._files[cgroup_id] = CgroupMemory(hierarchy.mount_point / path, hierarchy.version)
        try:
            return files.read()
        except (CgroupGone, SupportError):
            self._files.pop(cgroup_id).close()
            return None

    def close(self) -> None:
        """Close every fd."""
        for files in self._files.values():
            files.close()
        self._files.clear()


def with_stat(memory: MemoryParts, stat: CgroupMemoryStat, scope: str) -> MemoryParts:
    """Return the memory with what `stat` adds; its lists may be older by a moment, so only what is more there counts.

    Huge pages of a pool go back to it, and for the machine the whole pool is used in any case; a node cgroup is charged
    less without them.
    """
    anon_bytes = stat.inactive_anon_bytes + stat.active_anon_bytes
    file_bytes = stat.inactive_file_bytes + stat.active_file_bytes
    left_anon = max(anon_bytes - memory.inactive_anon_bytes - memory.active_anon_bytes, 0)
    left_file = max(file_bytes - memory.inactive_file_bytes - memory.active_file_bytes, 0)
    pool_bytes = (stat.hugetlb_bytes or 0) if scope == "machine" else 0
    slab_bytes = memory.slab_reclaimable_bytes if stat.slab_reclaimable_bytes is None else stat.slab_reclaimable_bytes
    lists = memory.koordinator_used_bytes + memory.inactive_file_bytes + memory.active_file_bytes
    kernel = memory.usage_bytes - lists - left_anon - left_file - (slab_bytes or 0) - pool_bytes
    return msgspec.structs.replace(
        memory,
        inactive_anon_bytes=memory.inactive_anon_bytes + left_anon,
        inactive_file_bytes=memory.inactive_file_bytes + left_file,
        shmem_bytes=stat.shmem_bytes,
        slab_reclaimable_bytes=slab_bytes,
        kernel_bytes=max(kernel, 0),
    )


def _has_large_rest(memory: MemoryParts) -> bool:
    rest = memory.kernel_bytes or 0
    return rest >= _LEAST_BYTES and rest * _LEAST_SHARE > memory.koordinator_used_bytes
