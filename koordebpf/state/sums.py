"""One scan's rows, summed: by pod, and for the whole node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import msgspec

from koordebpf.events.layout import NO_LIMIT_PAGES, NOT_KNOWN
from koordebpf.state.view import MemoryParts

# struct koord_memcg as numbers, in pages: cgroup_id, parent_id, usage, max, swap, reclaimable slab in bytes, four
# events, and the five LRU sizes.
Row = tuple[int, ...]


class LimitedCgroup(msgspec.Struct, frozen=True, gc=False):
    """A pod's or container's cgroup with a memory limit. Bytes; `used_bytes` is what reclaim would not give back."""

    cgroup_id: int
    uid: str
    used_bytes: int  # usage − file LRU
    limit_bytes: int


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
        leaves: dict[int, int] = {}
        swapped: dict[int, int] = {}
        slabs: dict[int, int] = {}
        limited: list[tuple[int, str, int, int, int]] = []
        pods: dict[str, list[int]] = {}
        within: dict[int, str] = {}
        all_inactive_anon = all_active_anon = all_inactive_file = all_active_file = all_unevictable = 0
        usage_of = self.usage_bytes
        for (
            cgroup_id, parent_id, usage, limit, swap, slab, _, _, _, _,
            inactive_anon, active_anon, inactive_file, active_file, unevictable,
        ) in rows:  # fmt: skip
            usage_of[cgroup_id] = usage * page_bytes
            if swap:
                swapped[cgroup_id] = swap
            if slab < NOT_KNOWN:
                slabs[cgroup_id] = slab
            leaves.pop(parent_id, None)
            uid = pod_of(cgroup_id)
            if uid is None and (uid := within.get(parent_id) or pod_of(parent_id)) is not None:
                within[cgroup_id] = uid  # beyond what is known of the pod: its memory is the pod's all the same
            if uid is None:
                leaves[cgroup_id] = usage
            else:
                if limit < NO_LIMIT_PAGES and cgroup_id not in within:
                    limited.append((cgroup_id, uid, usage, limit, inactive_file + active_file))
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
        self._leaves = leaves
        self._swapped = swapped
        self._slabs = slabs
        self._limited = limited
        self._total = [all_inactive_anon, all_active_anon, all_inactive_file, all_active_file, all_unevictable]

    def pod(self, uid: str, cgroup_id: int) -> MemoryParts | None:
        """Return the memory of one pod, whose own level is `cgroup_id`; None where the scan saw neither.

        `kernel_bytes` is all that is charged and on no list of a living cgroup, at most: huge pages that count as usage
        and the page cache of removed containers are still in it, and reclaimable slab that was not measured.
        """
        sums = self._pods.get(uid)
        usage_bytes = self.usage_bytes.get(cgroup_id)
        if sums is None or usage_bytes is None:
            return None
        slab_bytes = self._slabs.get(cgroup_id)
        # Usage was read before the lists of the cgroups below: these may have grown meanwhile.
        kernel_bytes = max(usage_bytes - sum(sums) * self._page_bytes - (slab_bytes or 0), 0)
        return self._parts(usage_bytes, sums, slab_bytes, kernel_bytes)

    def all(self, root_id: int) -> MemoryParts | None:
        """Return the memory of everything that was scanned below and with `root_id`; None where that is gone."""
        usage_bytes = self.usage_bytes.get(root_id)
        return self._parts(usage_bytes, self._total) if usage_bytes is not None else None

    def swap_bytes(self, cgroup_id: int) -> int:
        """Return what a cgroup has in swap; 0 too where the rows come from files, which are not read for it."""
        return self._swapped.get(cgroup_id, 0) * self._page_bytes

    def outside(self) -> dict[int, int]:
        """Return what each cgroup outside all pods holds that has no children, swap included, by cgroup id. Bytes.

        What has children is left out: it gets the pages of those that are removed, and did not grow by that.
        """
        page, swapped = self._page_bytes, self._swapped
        return {cgroup_id: (usage + swapped.get(cgroup_id, 0)) * page for cgroup_id, usage in self._leaves.items()}

    def limited(self, pod_levels: Collection[int]) -> list[LimitedCgroup]:
        """Return every pod and container that has a limit, `pod_levels` being the cgroups of the pods themselves."""
        page, found = self._page_bytes, []
        for cgroup_id, uid, usage, limit, file in self._limited:
            if cgroup_id in pod_levels:
                file = self._pods[uid][2] + self._pods[uid][3]  # noqa: PLW2901 - the pod's with its containers'
            found.append(LimitedCgroup(cgroup_id, uid, max(usage - file, 0) * page, limit * page))
        return found

    def _parts(
        self, usage_bytes: int, sums: list[int], slab_bytes: int | None = None, kernel_bytes: int | None = None
    ) -> MemoryParts:
        page = self._page_bytes
        return MemoryParts(
            usage_bytes, sums[0] * page, sums[1] * page, sums[2] * page, sums[3] * page, sums[4] * page,
            None, slab_bytes, kernel_bytes,
        )  # fmt: skip


def cgroup_used_bytes(memory: MemoryParts) -> int:
    """Return what MemTotal − MemAvailable is for a machine: usage without what the kernel gives back when it must.

    Source:  mm/show_mem.c si_mem_available counts the file LRU and reclaimable slab as available.
    """
    reclaimable = memory.inactive_file_bytes + memory.active_file_bytes + (memory.slab_reclaimable_bytes or 0)
    return max(memory.usage_bytes - reclaimable, 0)
