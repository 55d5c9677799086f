"""All memory cgroups of the node, summed: by one scan where the kernel has a cgroup iterator, else file by file."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.scope import NodeScope
from koordebpf.errors import CgroupGone, SupportError
from koordebpf.events.layout import MEMCG_LRU_AT, NO_LIMIT_PAGES, NOT_KNOWN, sum_memcgs
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory
from koordebpf.kernel.signals.interface import Backend
from koordebpf.state.measured import MemoryParts
from koordebpf.state.stalls.sums import Row, ScanSums, packed
from koordebpf.units import PAGE_BYTES

log = logging.getLogger(__name__)

_NOT_READ = (0, NOT_KNOWN, 0, 0, 0, 0)  # swap, reclaimable slab and the four events of a row: they are not summed up


class MemcgScan:
    """Scans. What reads as it did in the last full scan, `last`, is not summed again.

    Args:
        node_files: of the node where it is a cgroup.
    """

    def __init__(self, scope: NodeScope, signals: Backend, index: CgroupIndex, node_files: CgroupMemory | None) -> None:
        self._scope = scope
        self._signals = signals
        self._index = index
        self._node_files = node_files
        self._files: dict[int, CgroupMemory] = {}
        self._missed = 0
        self.last: ScanSums | None = None
        self.taken = 0  # full scans

    @property
    def can_scan(self) -> bool:
        """Tell whether it is by one scan."""
        return self._signals.can_scan

    def full(self) -> ScanSums:
        """Scan all that is needed of pods and node."""
        self.last = self._scan()
        self.taken += 1
        return self.last

    def again(self) -> ScanSums:
        """Return what the scan that `node` took says of pods too."""
        self.last = self._sums_of(self._signals.scanned())
        self.taken += 1
        return self.last

    def node(self) -> MemoryParts | None:
        """Scan, and return what the node's cgroup holds; None: it is gone."""
        if not self._signals.can_scan:
            return self._scan().all(self._scope.root_id)
        with self._rows() as rows:
            node = sum_memcgs(rows)
        if node is None or node[0] != self._scope.root_id:
            return None
        return MemoryParts(node[2] * PAGE_BYTES, *(pages * PAGE_BYTES for pages in node[MEMCG_LRU_AT:]))

    def _scan(self) -> ScanSums:
        if not self._signals.can_scan:
            return ScanSums(packed(self._scan_files()), self._index.subtree_pod, 1)
        return self._sums_of(self._rows())

    def _sums_of(self, rows: memoryview) -> ScanSums:
        before, version = self.last, self._index.version
        with rows:
            copy = bytes(rows)  # compared in no time; a memoryview is compared byte by byte
        if before is not None and before.is_of(copy, version):
            return before
        return ScanSums(copy, self._index.subtree_pod, PAGE_BYTES, before, version)

    def _rows(self) -> memoryview:
        # A memoryview releases itself at the end of its `with`.
        rows = self._signals.scan()
        if (missed := self._signals.scan_missed()) != self._missed:
            self._missed = missed
            log.warning("the scan's table is full: %d memory cgroups are not measured", missed)
        return rows

    def _scan_files(self) -> Iterator[Row]:
        # memory.stat is hierarchical: only the node and the pods are read, and nothing is summed up.
        version, mount_point = self._scope.hierarchy.version, self._scope.hierarchy.mount_point
        wanted = {cgroup_id: self._index.path(cgroup_id) for cgroup_id in self._index.pod_cgroups().values()}
        wanted |= {owner.cgroup_id: owner.path for owner in self._index.cgroups_without_pod()}
        for cgroup_id in self._files.keys() - wanted.keys():
            self._files.pop(cgroup_id).close()
        pods = [0, 0, 0, 0, 0]
        for cgroup_id, path in wanted.items():
            if path is None:
                continue
            reader = self._files.get(cgroup_id)
            if reader is None:
                reader = self._files[cgroup_id] = CgroupMemory(mount_point / path, version)
            try:
                lru = _row(cgroup_id, reader)
            except (CgroupGone, SupportError):  # SupportError: on v2 the controller is not enabled there
                self._files.pop(cgroup_id).close()
                continue
            pods = [sum(pair) for pair in zip(pods, lru[MEMCG_LRU_AT:], strict=True)]
            yield lru
        if self._node_files:
            node = _row(self._scope.root_id, self._node_files)
            own = (max(whole - part, 0) for whole, part in zip(node[MEMCG_LRU_AT:], pods, strict=True))
            yield (*node[:MEMCG_LRU_AT], *own)

    def close(self) -> None:
        """Close every fd."""
        for reader in self._files.values():
            reader.close()
        self._files.clear()


def _row(cgroup_id: int, reader: CgroupMemory) -> Row:
    stat = reader.read()
    return (
        cgroup_id,
        0,
        stat.usage_bytes,
        NO_LIMIT_PAGES if (limit := reader.limit_bytes()) is None else limit,
        *_NOT_READ,
        stat.inactive_anon_bytes,
        stat.active_anon_bytes,
        stat.inactive_file_bytes,
        stat.active_file_bytes,
        stat.unevictable_bytes,
    )
