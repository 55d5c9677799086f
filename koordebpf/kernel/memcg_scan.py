"""The one-pass scan: runs the cgroup iterator and shows the rows it wrote, without a copy."""

from __future__ import annotations

import struct

from koordebpf.kernel import libbpf
from koordebpf.kernel.signal_maps import Element

_SCAN_NUMA_AT = 36  # offsets in koord_settings
_MEMCGS_AT = 40  # memcgs_full, memcg_nodes, memcg_nodes_full follow
_COUNTS = struct.Struct("<4I")


class MemcgScan:
    """The rows of the last pass. They are the maps' own memory: they hold until the next pass.

    Args:
        link_fd: of the attached iterator.
        settings: the map's element, in which the programs count their rows.
        memcgs: struct koord_memcg.
        memcg_nodes: struct koord_memcg_node, filled on demand.
    """

    def __init__(self, link_fd: int, settings: Element, memcgs: libbpf.Map, memcg_nodes: libbpf.Map) -> None:
        self._link_fd = link_fd
        self._settings = settings
        self._maps = (memcgs, memcg_nodes)
        self._memories = [memcgs.memory(), memcg_nodes.memory()]
        self._views = [memoryview(memory) for memory in self._memories]

    def run(self, *, by_node: bool = False) -> memoryview:
        """Return whole struct koord_memcg rows, one for each memory cgroup below the root, parents first.

        Raises:  OSError: the root is gone.
        """
        self._settings.write(_SCAN_NUMA_AT, struct.pack("<I", by_node) + bytes(_COUNTS.size))
        libbpf.run_iter(self._link_fd)
        return self.rows()

    def rows(self) -> memoryview:
        """Return the rows of the last pass; none before the first."""
        return self._rows(0)

    def by_node(self) -> memoryview:
        """Return whole struct koord_memcg_node rows of the last pass, if it was asked for them."""
        return self._rows(1)

    def missed(self) -> int:
        """Return how many cgroups the last pass could not hold."""
        return self._counts()[1]

    def _rows(self, which: int) -> memoryview:
        return self._views[which][: self._counts()[2 * which] * self._maps[which].value_bytes]

    def _counts(self) -> tuple[int, ...]:
        return _COUNTS.unpack_from(self._settings.read(), _MEMCGS_AT)

    def close(self) -> None:
        """Give the memory back; twice is harmless. Raises BufferError: rows of it are still held."""
        for view in self._views:
            view.release()
        for memory in self._memories:
            memory.close()
