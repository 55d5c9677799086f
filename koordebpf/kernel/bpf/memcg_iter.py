"""The one-pass scan: runs the cgroup iterator and shows the rows it wrote, without a copy."""

from __future__ import annotations

import struct

from koordebpf.kernel.bpf import libbpf
from koordebpf.kernel.bpf.maps import Element

_MEMCGS_AT = 36  # offset in koord_settings; memcgs_full follows
_FIRST_ENTRIES = 128
_COUNTS = struct.Struct("<2I")


class MemcgScan:
    """The rows of the last pass. They are the map's own memory: they hold until the next pass.

    Args:
        link_fd: of the attached iterator.
        settings: the map's element, in which the programs count their rows.
        memcgs: struct koord_memcg.
    """

    def __init__(self, link_fd: int, settings: Element, memcgs: libbpf.Map) -> None:
        self._link_fd = link_fd
        self._settings = settings
        self._memcgs = MappedArray(memcgs)

    def run(self) -> memoryview:
        """Return whole struct koord_memcg rows, one for each memory cgroup below the root, parents first.

        Raises:  OSError: the root is gone.
        """
        self._settings.write(_MEMCGS_AT, bytes(_COUNTS.size))
        libbpf.run_iter(self._link_fd)
        return self.rows()

    def rows(self) -> memoryview:
        """Return the rows of the last pass; none before the first."""
        return self._memcgs.first(self._counts()[0])

    def missed(self) -> int:
        """Return how many cgroups the last pass could not hold."""
        return self._counts()[1]

    def _counts(self) -> tuple[int, ...]:
        return _COUNTS.unpack_from(self._settings.read(), _MEMCGS_AT)

    def close(self) -> None:
        """Give the memory back; twice is harmless. Raises BufferError: rows of it are still held."""
        self._memcgs.close()


class MappedArray:
    """A mapped array, as far as it was filled: all of what is mapped counts as the agent's memory, 1.9 MiB."""

    def __init__(self, array: libbpf.Map) -> None:
        """Map the first elements."""
        self._array = array
        self._grow(1)

    @property
    def max_entries(self) -> int:
        """How many elements it has."""
        return self._array.max_entries

    def first(self, count: int) -> memoryview:
        """Return so many of the first elements, at most all."""
        if count > self._entries:
            self._grow(count)
        return self._view[: count * self._array.value_bytes]

    # Rows of the last pass that are still held keep its mapping.
    def _grow(self, count: int) -> None:
        self._entries = min(max(_FIRST_ENTRIES, 1 << (count - 1).bit_length()), self._array.max_entries)
        self._memory = self._array.memory(self._entries)
        self._view = memoryview(self._memory)

    def close(self) -> None:
        """Give the memory back; twice is harmless. Raises BufferError: some of it is still held."""
        self._view.release()
        self._memory.close()
