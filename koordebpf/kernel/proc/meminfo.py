"""/proc/meminfo through one kept fd."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from koordebpf.errors import KernelFileError
from koordebpf.kernel.proc.proc_file import ProcFile
from koordebpf.units import KIB

_FILE_BYTES = 1 << 14  # 1.5 KiB on 6.18
_ROW = re.compile(
    rb"^(MemTotal|MemFree|MemAvailable|Cached|SReclaimable|SwapTotal|SwapFree|Hugetlb): +([0-9]+) kB$", re.MULTILINE
)


class MeminfoValues(msgspec.Struct, frozen=True, gc=False):
    """The machine's memory, by the kernel's names. None: this kernel has no such row."""

    mem_total_bytes: int
    mem_free_bytes: int
    mem_available_bytes: int
    cached_bytes: int | None
    sreclaimable_bytes: int | None
    swap_total_bytes: int | None
    swap_free_bytes: int | None
    hugetlb_bytes: int | None = None  # all huge pages, used or not; since Linux 4.19

    @property
    def used_bytes(self) -> int:
        """MemTotal − MemAvailable: what Koordinator calls the node's usage."""
        return self.mem_total_bytes - self.mem_available_bytes


class Meminfo(ProcFile):
    """Reads /proc/meminfo.

    Not psutil: it opens the file for each reading, and this one is read up to a hundred times a second.
    """

    def __init__(self, path: Path = Path("/proc/meminfo")) -> None:
        """Open the file.

        Raises:  SupportError: there is none.
        """
        super().__init__(path, "node memory")

    def read(self) -> MeminfoValues:
        """Return the rows as they are now.

        Raises:  KernelFileError: MemTotal, MemFree or MemAvailable (since Linux 3.14) is missing or no number of kB.
        Cost:    15 µs, most of it the kernel's.
        """
        text = os.pread(self._fd, _FILE_BYTES, 0)
        rows: dict[bytes, int] = {name: int(value) * KIB for name, value in _ROW.findall(text)}
        try:
            total, free, available = rows[b"MemTotal"], rows[b"MemFree"], rows[b"MemAvailable"]
        except KeyError as error:
            name = error.args[0]
            found = next((line for line in text.splitlines() if line.startswith(name + b":")), text)
            raise KernelFileError(
                str(self.path), found.decode(errors="backslashreplace"), f"must have a row {name.decode()}: <number> kB"
            ) from None
        return MeminfoValues(
            total,
            free,
            available,
            rows.get(b"Cached"),
            rows.get(b"SReclaimable"),
            rows.get(b"SwapTotal"),
            rows.get(b"SwapFree"),
            rows.get(b"Hugetlb"),
        )
