"""/proc/vmstat through one kept fd: what the whole machine reclaimed, compacted and killed since boot."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from koordebpf.kernel.io.text_file import ProcFile

VMSTAT = Path("/proc/vmstat")
_FILE_BYTES = 1 << 15  # 5 KiB on 6.18
_ROW = re.compile(
    rb"^(allocstall\w*|compact_stall|oom_kill|pageoutrun|pgscan_(?:anon|file)|pgsteal_kswapd) ([0-9]+)$", re.MULTILINE
)

# One row for anonymous memory and files together before Linux 5.9 (commit 170b04b7ae49, "mm/workingset: prepare the
# workingset detection infrastructure for anon LRU").
_REFAULTS = re.compile(rb"^workingset_refault(?:_file)? ([0-9]+)$", re.MULTILINE)


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

    def read(self) -> VmstatValues:
        """Return the counts as they are now.

        Cost:    40 µs, most of it the kernel's.
        """
        rows = {name: int(count) for name, count in _ROW.findall(os.pread(self._fd, _FILE_BYTES, 0))}
        scanned = [rows[name] for name in (b"pgscan_anon", b"pgscan_file") if name in rows]
        return VmstatValues(
            # One row for each zone since Linux 4.10, one in all before.
            sum(count for name, count in rows.items() if name.startswith(b"allocstall")),
            rows.get(b"compact_stall"),
            rows.get(b"pageoutrun"),
            rows.get(b"oom_kill"),
            sum(scanned) if scanned else None,
            rows.get(b"pgsteal_kswapd"),
        )

    def refaulted_pages(self) -> int:
        """Return how many file pages were reclaimed and read again; 0 where this kernel does not count them.

        Cost:    25 µs.
        """
        found = _REFAULTS.search(os.pread(self._fd, _FILE_BYTES, 0))
        return int(found[1]) if found else 0

    def rows(self) -> dict[str, int]:
        """Return every row of the file, as the kernel names it."""
        lines = os.pread(self._fd, _FILE_BYTES, 0).decode().splitlines()
        return {name: int(count) for name, _, count in (line.partition(" ") for line in lines) if count.isdigit()}
