"""One scan's rows, summed: by pod, and for the whole node."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from koordebpf.state.view import MemoryParts

# struct koord_memcg as numbers, in pages: cgroup_id, parent_id, usage, max, and the five LRU sizes.
Row = tuple[int, ...]


class ScanSums:
    """LRU sizes of one scan, summed over each pod's subtree and over everything; usage of the roots of each."""

    def __init__(self, rows: Iterable[Row], pod_of: Callable[[int], str | None], page_bytes: int) -> None:
        """Sum `rows`.

        Args:
            rows: in pages; parents before children.
            pod_of: gives the pod of a cgroup at or below the pod's own level.
            page_bytes: size of a page.
        """
        self._page_bytes = page_bytes
        self.usage_bytes: dict[int, int] = {}
        pods: dict[str, list[int]] = {}
        all_inactive_anon = all_active_anon = all_inactive_file = all_active_file = all_unevictable = 0
        usage_of = self.usage_bytes
        for cgroup_id, _, usage, _, inactive_anon, active_anon, inactive_file, active_file, unevictable in rows:
            usage_of[cgroup_id] = usage * page_bytes
            uid = pod_of(cgroup_id)
            if uid is not None:
                sums = pods.get(uid)
                if sums is None:
                    sums = pods[uid] = [0, 0, 0, 0, 0]
                sums[0] += inactive_anon
                sums[1] += active_anon
                sums[2] += inactive_file
                sums[3] += active_file
                sums[4] += unevictable
            all_inactive_anon += inactive_anon
            all_active_anon += active_anon
            all_inactive_file += inactive_file
            all_active_file += active_file
            all_unevictable += unevictable
        self._pods = pods
        self._total = [all_inactive_anon, all_active_anon, all_inactive_file, all_active_file, all_unevictable]

    def pod(self, uid: str, cgroup_id: int) -> MemoryParts | None:
        """Return the memory of one pod, whose own level is `cgroup_id`; None where the scan saw neither."""
        sums = self._pods.get(uid)
        usage_bytes = self.usage_bytes.get(cgroup_id)
        return self._parts(usage_bytes, sums) if sums is not None and usage_bytes is not None else None

    def all(self, root_id: int) -> MemoryParts | None:
        """Return the memory of everything that was scanned below and with `root_id`; None where that is gone."""
        usage_bytes = self.usage_bytes.get(root_id)
        return self._parts(usage_bytes, self._total) if usage_bytes is not None else None

    def _parts(self, usage_bytes: int, sums: list[int]) -> MemoryParts:
        page = self._page_bytes
        return MemoryParts(
            usage_bytes, sums[0] * page, sums[1] * page, sums[2] * page, sums[3] * page, sums[4] * page
        )  # fmt: skip


def cgroup_used_bytes(memory: MemoryParts) -> int:
    """Return what MemTotal − MemAvailable is for a machine: usage without what the kernel gives back when it must.

    Source:  mm/show_mem.c si_mem_available counts the file LRU and reclaimable slab as available.
    """
    reclaimable = memory.inactive_file_bytes + memory.active_file_bytes + (memory.slab_reclaimable_bytes or 0)
    return max(memory.usage_bytes - reclaimable, 0)
