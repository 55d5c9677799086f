"""/proc/zoneinfo through one kept fd: free pages and watermarks of each NUMA node's zone Normal."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from koordebpf.errors import KernelFileError
from koordebpf.kernel.io.text_file import ProcFile

_FILE_BYTES = 1 << 20  # 10 KiB a node on 6.18, more with many CPUs: each has a pageset
_ZONE = re.compile(rb"^Node ([0-9]+), zone +(\w+)\n(.*?)(?=^Node |\Z)", re.MULTILINE | re.DOTALL)
_EMPTY = re.compile(rb"^ +present +0$", re.MULTILINE)  # of such a zone the kernel prints no counts
_FREE = re.compile(rb"^  pages free +([0-9]+)$", re.MULTILINE)
_ROW = re.compile(rb"^ +(min|low|high|nr_zone_inactive_file|nr_zone_active_file) +([0-9]+)$", re.MULTILINE)


class ZoneValues(msgspec.Struct, frozen=True, gc=False):
    """The zone Normal of one NUMA node, in pages."""

    node: int
    free_pages: int
    min_pages: int
    low_pages: int
    high_pages: int
    inactive_file_pages: int
    active_file_pages: int


class Zoneinfo(ProcFile):
    """Reads /proc/zoneinfo."""

    def __init__(self, path: Path = Path("/proc/zoneinfo")) -> None:
        """Open the file.

        Raises:  SupportError: there is none.
        """
        super().__init__(path, "memory of NUMA nodes")

    def read(self) -> tuple[ZoneValues, ...]:
        """Return the nodes that have memory in their zone Normal, by number: on a machine of 3 GiB there may be none.

        Raises:  KernelFileError: a row of a zone is missing.
        Source:  mm/vmstat.c, zoneinfo_show_print; nr_zone_inactive_file and nr_zone_active_file since Linux 4.8.
        """
        text = b""
        while part := os.pread(self._fd, _FILE_BYTES, len(text)):
            text += part
        zones = ((int(node), body) for node, name, body in _ZONE.findall(text) if name == b"Normal")
        return tuple(_zone(node, body) for node, body in zones if not _EMPTY.search(body))


def _zone(node: int, body: bytes) -> ZoneValues:
    free, rows = _FREE.search(body), dict(_ROW.findall(body))
    names = (b"min", b"low", b"high", b"nr_zone_inactive_file", b"nr_zone_active_file")
    if free is None or any(name not in rows for name in names):
        raise KernelFileError("/proc/zoneinfo", f"node {node}", "must have free, min, low, high and file pages")
    return ZoneValues(node, int(free[1]), *(int(rows[name]) for name in names))
