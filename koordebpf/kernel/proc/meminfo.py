"""/proc/meminfo, and meminfo of each NUMA node, through kept fds."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import msgspec

from koordebpf.errors import KernelFileError
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.text_file import ProcFile
from koordebpf.kernel.proc.cpu_topology import SYSFS
from koordebpf.units import KIB

_FILE_BYTES = 1 << 14  # 1.5 KiB on 6.18
_NODE_ROW = re.compile(
    rb"^Node [0-9]+ (MemTotal|MemFree|Active\(file\)|Inactive\(file\)|SReclaimable): +([0-9]+) kB$", re.MULTILINE
)
_NODE = re.compile(r"node([0-9]+)")
_ROW = re.compile(
    rb"^(MemTotal|MemFree|MemAvailable|Cached|SReclaimable|SwapTotal|SwapFree|Hugetlb): +([0-9]+) kB$", re.MULTILINE
)


class NumaMeminfo(Closing):
    """Reads /sys/devices/system/node/node*/meminfo. A node without that file is left out.

    Source:  drivers/base/node.c node_read_meminfo; koordinator pkg/koordlet/util/meminfo.go.
    """

    def __init__(self, sysfs: Path = SYSFS) -> None:
        """Open the files of the nodes that are there now."""
        self._fds: dict[int, tuple[Path, int]] = {}
        folder = sysfs / "node"
        for path in folder.iterdir() if folder.is_dir() else ():
            if found := _NODE.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    file = path / "meminfo"
                    self._fds[int(found[1])] = file, os.open(file, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def nodes(self) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(sorted(self._fds))

    def used_bytes(self) -> dict[int, int]:
        """Return by node MemTotal without what is free or can be reclaimed: no node has a row MemAvailable.

        Raises:  KernelFileError: a row is missing or no number of kB. OSError: a node was removed.
        Cost:    15 µs a node.
        """
        used: dict[int, int] = {}
        for node, (path, fd) in self._fds.items():
            text = os.pread(fd, _FILE_BYTES, 0)
            rows = {name: int(value) * KIB for name, value in _NODE_ROW.findall(text)}
            try:
                available = rows[b"MemFree"] + rows[b"Active(file)"] + rows[b"Inactive(file)"] + rows[b"SReclaimable"]
                used[node] = max(rows[b"MemTotal"] - available, 0)
            except KeyError as error:
                rule = f"must have a row {error.args[0].decode()}: <number> kB"
                raise KernelFileError(str(path), text.decode(errors="backslashreplace"), rule) from None
        return used

    def close(self) -> None:
        """Close every fd; twice is harmless."""
        for _, fd in self._fds.values():
            os.close(fd)
        self._fds.clear()


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
