"""/proc/vmstat and /proc/zoneinfo through kept fds: what the machine reclaimed, compacted, killed, and has free."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

import msgspec

from koordebpf.kernel.io.table import Keyed, Rising, amount_or_none, field, is_number, keyed, odd_row, rows
from koordebpf.kernel.io.text_file import ProcFile

_ZONEINFO_BYTES = 1 << 20  # 10 KiB a node on 6.18, more with many CPUs: each has a pageset
_ZONE = re.compile(rb"^Node ([0-9]+), zone +(\w+)\n(.*?)(?=^Node |\Z)", re.MULTILINE | re.DOTALL)
_EMPTY = re.compile(rb"^ +present +0$", re.MULTILINE)  # of such a zone the kernel prints no counts
_FREE = re.compile(rb"^  pages free +([0-9]{1,20})$", re.MULTILINE)
_ZONE_ROW = re.compile(rb"^ +(min|low|high|nr_zone_inactive_file|nr_zone_active_file) +([0-9]{1,20})$", re.MULTILINE)
VMSTAT = Path("/proc/vmstat")
_FILE_BYTES = 1 << 15  # 5 KiB on 6.18
# One row of direct reclaim for each zone since Linux 4.10, one in all before; zones as in include/linux/mmzone.h.
_ALLOCSTALL = tuple(
    b"allocstall" + zone for zone in (b"", b"_dma", b"_dma32", b"_normal", b"_high", b"_movable", b"_device")
)
_COUNTS = (b"compact_stall", b"pageoutrun", b"oom_kill", b"pgsteal_kswapd")
_SCANNED = (b"pgscan_anon", b"pgscan_file")
_READ = frozenset((*_ALLOCSTALL, *_COUNTS, *_SCANNED))
# One row for anonymous memory and files together before Linux 5.9 (commit 170b04b7ae49, "mm/workingset: prepare the
# workingset detection infrastructure for anon LRU").
_REFAULTS = (b"workingset_refault_file", b"workingset_refault")


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
        while part := os.pread(self._fd, _ZONEINFO_BYTES, len(text)):
            text += part
        zones = ((int(node), body) for node, name, body in _ZONE.findall(text) if name == b"Normal")
        return tuple(_zone(node, body) for node, body in zones if not _EMPTY.search(body))


def _zone(node: int, body: bytes) -> ZoneValues:
    free, values = _FREE.search(body), dict(reversed(_ZONE_ROW.findall(body)))  # of two rows the first
    names = (b"min", b"low", b"high", b"nr_zone_inactive_file", b"nr_zone_active_file")
    if free is None or any(name not in values for name in names):
        raise odd_row("/proc/zoneinfo", b"node %d" % node, "must have free, min, low, high and file pages")
    found = (amount_or_none(each) for each in (free[1], *(values[name] for name in names)))
    pages = [each for each in found if each is not None]
    if len(pages) <= len(names):
        raise odd_row("/proc/zoneinfo", b"node %d" % node, "must have fewer than 2^60 pages")
    return ZoneValues(node, *pages)


class VmstatValues(msgspec.Struct, frozen=True, gc=False):
    """Counts since boot. None: this kernel has no such row."""

    allocstall: int  # direct reclaim for the machine's shortage, over all zones
    compact_stall: int | None  # direct compaction
    pageoutrun: int | None  # runs of all kswapds
    oom_kill: int | None  # since Linux 4.13
    pgscan: int | None  # pages scanned by any reclaim, also at limits; since Linux 5.8
    pgsteal_kswapd: int | None = None  # pages that kswapds reclaimed


class Vmstat(ProcFile):
    """Reads /proc/vmstat."""

    def __init__(self, path: Path = VMSTAT) -> None:
        """Open the file.

        Raises:  SupportError: there is none.
        """
        super().__init__(path, "reclaim counters")
        self._rising = Rising(path)

    def read(self) -> VmstatValues:
        """Return the counts as they are now.

        Cost:    40 µs, most of it the kernel's.
        """
        values = self._keyed(_READ).values
        scanned = [values[name] for name in _SCANNED if name in values]
        return VmstatValues(
            sum(values.get(name, 0) for name in _ALLOCSTALL),
            values.get(b"compact_stall"),
            values.get(b"pageoutrun"),
            values.get(b"oom_kill"),
            sum(scanned) if scanned else None,
            values.get(b"pgsteal_kswapd"),
        )

    def refaulted_pages(self) -> int:
        """Return how many file pages were reclaimed and read again; 0 where this kernel does not count them.

        Cost:    25 µs.
        """
        values = self._keyed(_REFAULTS).values
        return next((values[name] for name in _REFAULTS if name in values), 0)

    def rows(self) -> dict[str, int]:
        """Return every row of the file, as the kernel names it."""
        found: dict[str, int] = {}
        for row in rows(os.pread(self._fd, _FILE_BYTES, 0)):
            name, _, count = row.partition(b" ")
            if is_number(count):
                found.setdefault(field(name), int(count))
        return found

    # A row that is odd is one that this kernel does not have.
    def _keyed(self, wanted: Collection[bytes]) -> Keyed:
        found = keyed(self.path, os.pread(self._fd, _FILE_BYTES, 0), wanted)
        self._rising.check(found.values)
        return found
