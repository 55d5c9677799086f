"""/proc/meminfo and /proc/stat of a node that is a cgroup: files for a program that would read the machine's."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import Self

from tests.cluster.node import RealNode

_PERIOD_S = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")


class NodeProc:
    """Keeps `meminfo` and `stat` in a folder as the node's memory and CPU time are, each 0.2 s, until `close`."""

    def __init__(self, node: RealNode, folder: Path) -> None:
        folder.mkdir()
        self.meminfo, self.stat = folder / "meminfo", folder / "stat"
        self._node = node
        self._used = node.directory("cpuacct") / "cpuacct.usage"
        self._is_over = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(_PERIOD_S):
            self._write()

    def _write(self) -> None:
        left_kib = max(self._node.memory_bytes - self._node.used_bytes(), 0) >> 10
        sizes = {"MemTotal": self._node.memory_bytes >> 10, "MemFree": left_kib, "MemAvailable": left_kib}
        text = Path("/proc/meminfo").read_text()
        for name, kib in sizes.items():
            text = re.sub(rf"^{name}:.*$", f"{name}: {kib:>15} kB", text, flags=re.MULTILINE)
        _put(self.meminfo, text)
        cpus = os.cpu_count() or 1
        used = int(self._used.read_text()) * _TICKS // 1_000_000_000
        idle = int(time.monotonic() * _TICKS) * cpus - used
        lines = [f"cpu  {used} 0 0 {idle} 0 0 0 0 0 0"]
        lines += [f"cpu{cpu} {used // cpus} 0 0 {idle // cpus} 0 0 0 0 0 0" for cpu in range(cpus)]
        _put(self.stat, "\n".join((*lines, *Path("/proc/stat").read_text().splitlines()[cpus + 1 :], "")))

    def close(self) -> None:
        """Leave the files as they are."""
        self._is_over.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# In place, since it is mounted; in one write of the same length, so that no reader sees half of it.
def _put(file: Path, text: str) -> None:
    data = text.encode()
    with file.open("r+b" if file.exists() else "wb", buffering=0) as out:
        out.write(data.ljust(file.stat().st_size, b"\n"))
        out.truncate(max(len(data), 1))
