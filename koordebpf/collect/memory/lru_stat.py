"""LRU lists and refaults of one cgroup with its children, from memory.stat of both versions of cgroups."""

from __future__ import annotations

import os
import re
from pathlib import Path

from koordebpf.kernel.cgroup.files import Version
from koordebpf.kernel.io.text_file import KeptFile

_STAT_BYTES = 1 << 13  # memory.stat of 6.18 has 1.6 KiB
_ROWS = "((?:in)?active_(?:anon|file)|workingset_(?:refault|activate)(?:_anon|_file)?) ([0-9]+)$"
# On v1 rows without children come first, and those with them are called total_….
_ROW = {1: re.compile(f"^total_{_ROWS}".encode(), re.MULTILINE), 2: re.compile(f"^{_ROWS}".encode(), re.MULTILINE)}
_USAGE = {1: "memory.usage_in_bytes", 2: "memory.current"}


class LruStat(KeptFile):
    """memory.stat and the usage of one cgroup, through kept fds."""

    def __init__(self, directory: Path, version: Version) -> None:
        """Open both files.

        Raises:  OSError: the cgroup is gone.
        """
        self._fd = os.open(directory / "memory.stat", os.O_RDONLY | os.O_CLOEXEC)
        self._usage = os.open(directory / _USAGE[version], os.O_RDONLY | os.O_CLOEXEC)
        self._row = _ROW[version]

    def rows(self) -> dict[bytes, int]:
        """Return the rows by name, without total_.

        Cost:    20 µs.
        Raises:  OSError: the cgroup is gone.
        """
        return {name: int(number) for name, number in self._row.findall(os.pread(self._fd, _STAT_BYTES, 0))}

    def usage_bytes(self) -> int:
        """Return all memory that the cgroup is charged.

        Raises:  OSError: the cgroup is gone. ValueError: not a number.
        """
        return int(os.pread(self._usage, 32, 0))

    def close(self) -> None:
        """Close both; twice is harmless."""
        if self._fd >= 0:
            os.close(self._usage)
        super().close()


def file_bytes(rows: dict[bytes, int]) -> int:
    """Return the bytes of the file LRU lists."""
    return rows.get(b"inactive_file", 0) + rows.get(b"active_file", 0)


def anon_bytes(rows: dict[bytes, int]) -> int:
    """Return the bytes of the anonymous LRU lists."""
    return rows.get(b"inactive_anon", 0) + rows.get(b"active_anon", 0)


def file_pages(rows: dict[bytes, int], name: bytes) -> int | None:
    """Return the row `name` of files; None: this kernel does not count it.

    Before Linux 5.9 one row counted anonymous memory and files together.
    """
    return rows.get(name + b"_file", rows.get(name))
