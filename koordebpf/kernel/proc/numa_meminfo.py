"""meminfo of each NUMA node through kept fds."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from koordebpf.errors import KernelFileError
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.proc.cpu_topology import SYSFS
from koordebpf.units import KIB

_FILE_BYTES = 1 << 14
_ROW = re.compile(
    rb"^Node [0-9]+ (MemTotal|MemFree|Active\(file\)|Inactive\(file\)|SReclaimable): +([0-9]+) kB$", re.MULTILINE
)
_NODE = re.compile(r"node([0-9]+)")


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
            rows = {name: int(value) * KIB for name, value in _ROW.findall(text)}
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
