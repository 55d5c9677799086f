"""One scan's rows, summed: by pod, and for the whole node."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from koordebpf.events.layout import MEMCG_LRU_AT, MEMCG_SWAP_AT, MEMCG_WORDS, NO_LIMIT_PAGES, NOT_KNOWN
from koordebpf.state.measured import MemoryParts

# struct koord_memcg as numbers, in pages: cgroup_id, parent_id, usage, max, swap, reclaimable slab in bytes, four
# events, and the five LRU sizes.
Row = tuple[int, ...]
_USAGE_AT, _LIMIT_AT, _SLAB_AT = 2, 3, 5
_FILE_AT = MEMCG_LRU_AT + 2  # inactive file, then active file
_ROW = struct.Struct(f"<{MEMCG_WORDS}Q")


class LimitedCgroup(msgspec.Struct, frozen=True, gc=False):
    """A pod's or container's cgroup with a memory limit. Bytes; `used_bytes` is what cannot be reclaimed."""

    cgroup_id: int
    uid: str
    used_bytes: int  # usage − file LRU
    limit_bytes: int


def packed(rows: Iterable[Row]) -> bytes:
    """Return rows as one scan writes them."""
    return b"".join(_ROW.pack(*row) for row in rows)


class _Layout:
    """Whose the rows are. It holds for as long as the same cgroups are scanned and `pod_of` says the same."""

    def __init__(
        self,
        ids: Sequence[int],
        parents: Sequence[int],
        pod_of: Callable[[int], str | None],
        roots: Collection[int] = (),
    ) -> None:
        self.ids, self.parents = ids, parents
        self.row_of = {cgroup_id: row for row, cgroup_id in enumerate(ids)}
        runs: dict[str | int, list[list[int]]] = {}  # of rows: first, and the one after the last
        tops: dict[int, int] = {}  # of what is outside of pods: the highest cgroup of its subtree
        excluded: dict[int, list[int]] = {}  # by such a highest one: rows right below its subtree that are another's
        within: dict[int, str] = {}
        leaves: dict[int, int] = {}
        self.own: list[tuple[int, int, str]] = []  # row, cgroup and pod of what is known of pods
        for row, (cgroup_id, parent_id) in enumerate(zip(ids, parents, strict=True)):
            leaves.pop(parent_id, None)
            above = tops.get(parent_id)
            uid = pod_of(cgroup_id)
            if uid is not None:
                self.own.append((row, cgroup_id, uid))
            elif (uid := within.get(parent_id) or pod_of(parent_id)) is not None:
                within[cgroup_id] = uid  # beyond what is known of the pod: its memory is the pod's all the same
            else:
                leaves[cgroup_id] = row
                is_top = above is None or parent_id == ids[0] or cgroup_id in roots
                tops[cgroup_id] = cgroup_id if is_top or above is None else above
            whose: str | int = tops[cgroup_id] if uid is None else uid
            if above is not None and whose != above:
                excluded.setdefault(above, []).append(row)
            found = runs.setdefault(whose, [])
            if found and found[-1][1] == row:
                found[-1][1] += 1
            else:
                found.append([row, row + 1])
        self.leaves = leaves
        self._ends: list[int] | None = None
        slices = {whose: tuple(_bytes_of(first, end) for first, end in found) for whose, found in runs.items()}
        self.slices = {uid: each for uid, each in slices.items() if isinstance(uid, str)}
        self.outside = {top: each for top, each in slices.items() if isinstance(top, int)}
        self.excluded = {top: _Excluded(ids, rows) for top, rows in excluded.items()}

    def ends(self) -> list[int]:
        """Return for each row where what is below it ends: rows are in the order of a walk, parents first."""
        if self._ends is None:
            self._ends = [len(self.ids)] * len(self.ids)
            above: list[int] = []  # rows that have not ended
            for row, parent_id in enumerate(self.parents):
                while above and self.ids[above[-1]] != parent_id:
                    self._ends[above.pop()] = row
                above.append(row)
        return self._ends


class _Excluded:
    # Cgroups and where their numbers are in a scan: `itemgetter` takes a fifth of the time of one index at a time.
    def __init__(self, ids: Sequence[int], rows: Sequence[int]) -> None:
        self.ids = tuple([ids[row] for row in rows])
        self.usages, self.swaps, self.slabs = (_picker(rows, at) for at in (_USAGE_AT, MEMCG_SWAP_AT, _SLAB_AT))


def _picker(rows: Sequence[int], at: int) -> Callable[[Any], Iterable[int]]:
    places = [row * MEMCG_WORDS + at for row in rows]
    return itemgetter(*places) if len(places) > 1 else lambda numbers: (numbers[places[0]],)


class _PodRows(NamedTuple):
    cgroup_id: int  # the pod's own level, its usage, swap and reclaimable slab
    usage: int
    swap: int
    slab: int
    rows: bytes


class Subtree(NamedTuple):
    """What is outside of all pods below one cgroup, `top`. `memory`: with what is below it, but without `excluded`.

    `excluded`: the cgroups right below it that are pods' own levels, or highest ones of other subtrees.
    """

    top: int
    memory: MemoryParts
    excluded: tuple[int, ...]


class ScanSums:
    """LRU sizes of one scan, summed over each pod's subtree and over everything; usage of the roots of each.

    Cost:    most pods of a node are as they were a second ago: what reads the same is not summed again.
    """

    def __init__(
        self,
        rows: bytes,
        pod_of: Callable[[int], str | None],
        page_bytes: int,
        before: ScanSums | None = None,
        version: int | None = None,
        roots: Collection[int] = (),
    ) -> None:
        """Take `rows`.

        Args:
            rows: whole struct koord_memcg, in pages; parents before children.
            pod_of: gives the pod of a cgroup at or below the pod's own level.
            page_bytes: size of a page.
            before: of an earlier scan.
            version: of what `pod_of` says: as long as it is that of `before`, it says the same, and so do `roots`.
            roots: cgroups outside of pods that are subtrees of their own, `subtrees`.
        """
        self._rows, self._page_bytes, self._version = rows, page_bytes, version
        self._numbers = memoryview(rows).cast("Q")
        ids, parents = self._column(0), self._column(1)
        self._pods: dict[str | int, tuple[_PodRows, MemoryParts]] = {}  # by uid, and subtrees by their highest cgroup
        self._limited: dict[int, tuple[bytes, LimitedCgroup]] = {}  # by cgroup: its rows, and what they say
        self._swapped: dict[int, int] | None = None
        self._total: list[int] | None = None
        self._layout: _Layout
        self._pods_before: dict[str | int, tuple[_PodRows, MemoryParts]] = {}
        self._limited_before: dict[int, tuple[bytes, LimitedCgroup]] = {}
        if (
            before is not None
            and version is not None
            and (version, ids, parents) == (before._version, before._layout.ids, before._layout.parents)
        ):
            self._layout = before._layout
            self._pods_before, self._limited_before = before._pods, before._limited or before._limited_before
        else:
            self._layout = _Layout(ids, parents, pod_of, roots)

    def is_of(self, rows: bytes, version: int) -> bool:
        """Tell whether these are the sums of such rows, which are another scan's."""
        return version == self._version and rows == self._rows

    def pod(self, uid: str, cgroup_id: int) -> MemoryParts | None:
        """Return the memory of one pod, whose own level is `cgroup_id`; None where the scan saw neither.

        `kernel_bytes` is all that is charged and on no list of a living cgroup, at most: huge pages that count as usage
        and the page cache of removed containers are still in it, and reclaimable slab that was not measured.
        """
        found = self._pods.get(uid)
        if found is not None and found[0].cgroup_id == cgroup_id:
            return found[1]
        row, slices = self._layout.row_of.get(cgroup_id), self._layout.slices.get(uid)
        if row is None or slices is None:
            return None
        usage, swap, slab = self._at(row, _USAGE_AT), self._at(row, MEMCG_SWAP_AT), self._at(row, _SLAB_AT)
        return self._summed(uid, _PodRows(cgroup_id, usage, swap, slab, self._joined(slices)))

    # Of rows that read as in the scan before, what that came to.
    def _summed(self, key: str | int, its: _PodRows) -> MemoryParts:
        known = self._pods_before.get(key)
        if known is None or known[0] != its:
            known = its, self._sum(its)
        self._pods[key] = known
        return known[1]

    def _sum(self, its: _PodRows) -> MemoryParts:
        sums = [sum(sizes) for sizes in zip(*(row[MEMCG_LRU_AT:] for row in _ROW.iter_unpack(its.rows)), strict=True)]
        usage_bytes = its.usage * self._page_bytes
        slab_bytes = its.slab if its.slab < NOT_KNOWN else None
        # Usage was read before the lists of the cgroups below: these may have grown meanwhile.
        kernel_bytes = max(usage_bytes - sum(sums) * self._page_bytes - (slab_bytes or 0), 0)
        return self._parts(usage_bytes, its.swap, sums, slab_bytes, kernel_bytes)

    def subtrees(self) -> list[Subtree]:
        """Return what is outside of all pods: below each child of the root, the root's own, and below each of `roots`.

        Parents come before children. `kernel_bytes` is as for `pod`: page cache of removed cgroups is still in it.

        Cost:    20 µs, and 1 µs for each cgroup of a subtree that does not read the same.
        """
        layout = self._layout
        numbers, found = self._numbers, list[Subtree]()
        for top, slices in layout.outside.items():
            row, excluded = layout.row_of[top], layout.excluded.get(top)
            usage, swap, slab = self._at(row, _USAGE_AT), self._at(row, MEMCG_SWAP_AT), self._at(row, _SLAB_AT)
            if excluded is not None:
                # Read one after the other: those below may have grown meanwhile.
                usage = max(usage - sum(excluded.usages(numbers)), 0)
                swap = max(swap - sum(excluded.swaps(numbers)), 0) if swap else 0
                if slab < NOT_KNOWN:
                    slab = max(slab - sum([each for each in excluded.slabs(numbers) if each < NOT_KNOWN]), 0)
            memory = self._summed(top, _PodRows(top, usage, swap, slab, self._joined(slices)))
            found.append(Subtree(top, memory, () if excluded is None else excluded.ids))
        return found

    def all(self, root_id: int) -> MemoryParts | None:
        """Return the memory of everything that was scanned below and with `root_id`; None where that is gone."""
        row = self._layout.row_of.get(root_id)
        if row is None:
            return None
        if self._total is None:
            self._total = [sum(self._numbers[at::MEMCG_WORDS]) for at in range(MEMCG_LRU_AT, MEMCG_WORDS)]
        return self._parts(self._at(row, _USAGE_AT) * self._page_bytes, self._at(row, MEMCG_SWAP_AT), self._total)

    @property
    def layout(self) -> object:
        """The same object as long as the same cgroups are scanned: `rows_of` says the same then."""
        return self._layout

    def rows_of(self, cgroup_id: int) -> range | None:
        """Return the rows of a cgroup and of all below it; None: it was not scanned."""
        row = self._layout.row_of.get(cgroup_id)
        return None if row is None else range(row, self._layout.ends()[row])

    def held_bytes(self, *, page_cache: bool = False) -> list[int]:
        """Return of each row, without those below it: anonymous and unevictable memory; or that with page cache."""
        lists = (2, 3) if page_cache else ()
        columns = [self._column(MEMCG_LRU_AT + at) for at in (0, 1, *lists, 4)]
        return [sum(pages) * self._page_bytes for pages in zip(*columns, strict=True)]

    def usage_bytes(self, cgroup_id: int) -> int | None:
        """Return what is charged to a cgroup with those below it; None: it was not scanned."""
        row = self._layout.row_of.get(cgroup_id)
        return None if row is None else self._at(row, _USAGE_AT) * self._page_bytes

    def swap_bytes(self, cgroup_id: int) -> int:
        """Return what a cgroup has in swap with those below it; 0 too where it was not scanned."""
        if self._swapped is None:
            pairs = zip(self._layout.ids, self._column(MEMCG_SWAP_AT), strict=True)
            self._swapped = {each: swap for each, swap in pairs if swap}
        return self._swapped.get(cgroup_id, 0) * self._page_bytes

    def outside(self) -> dict[int, int]:
        """Return what each cgroup outside all pods holds that has no children, swap included, by cgroup id. Bytes.

        What has children is left out: it gets the pages of those that are removed, and did not grow by that.
        """
        return {
            cgroup_id: (self._at(row, _USAGE_AT) + self._at(row, MEMCG_SWAP_AT)) * self._page_bytes
            for cgroup_id, row in self._layout.leaves.items()
        }

    def limited(self, pod_levels: Collection[int]) -> list[LimitedCgroup]:
        """Return every pod and container that has a limit, `pod_levels` being the cgroups of the pods themselves."""
        page, limits, found = self._page_bytes, self._column(_LIMIT_AT), []
        for row, cgroup_id, uid in self._layout.own:
            if (limit := limits[row]) >= NO_LIMIT_PAGES:
                continue
            of = self._layout.slices[uid] if cgroup_id in pod_levels else (_bytes_of(row, row + 1),)
            rows = self._joined(of)
            known = self._limited_before.get(cgroup_id)
            if known is None or known[0] != rows or known[1].uid != uid:
                file = sum(sum(each[_FILE_AT : _FILE_AT + 2]) for each in _ROW.iter_unpack(rows))
                used = max(self._at(row, _USAGE_AT) - file, 0)
                known = rows, LimitedCgroup(cgroup_id, uid, used * page, limit * page)
            self._limited[cgroup_id] = known
            found.append(known[1])
        return found

    def _joined(self, slices: Sequence[slice]) -> bytes:
        return self._rows[slices[0]] if len(slices) == 1 else b"".join([self._rows[each] for each in slices])

    def _column(self, member: int) -> list[int]:
        return self._numbers[member::MEMCG_WORDS].tolist()

    def _at(self, row: int, member: int) -> int:
        return self._numbers[row * MEMCG_WORDS + member]

    def _parts(
        self,
        usage_bytes: int,
        swap: int,
        sums: list[int],
        slab_bytes: int | None = None,
        kernel_bytes: int | None = None,
    ) -> MemoryParts:
        page = self._page_bytes
        return MemoryParts(
            usage_bytes, sums[0] * page, sums[1] * page, sums[2] * page, sums[3] * page, sums[4] * page,
            None, slab_bytes, kernel_bytes, swap * page,
        )  # fmt: skip


def _bytes_of(first: int, end: int) -> slice:
    return slice(first * _ROW.size, end * _ROW.size)


def cgroup_used_bytes(memory: MemoryParts) -> int:
    """Return what MemTotal − MemAvailable is for a machine: usage without what the kernel can reclaim.

    Source:  mm/show_mem.c si_mem_available counts the file LRU and reclaimable slab as available.
    """
    reclaimable = memory.inactive_file_bytes + memory.active_file_bytes + (memory.slab_reclaimable_bytes or 0)
    return max(memory.usage_bytes - reclaimable, 0)
