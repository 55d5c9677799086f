"""A disk of a scenario: a loop device, and the directories of its pods where block IO is limited."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, find_controllers
from koordebpf.units import MIB

_REMOVE_S = 10.0  # a killed process ends its request to the disk before its cgroup can be removed


class Disk:
    """The device, by its `path`; `close()` removes it and the directories.

    Args:
        folder: for its file.
        size_mib: of the device.
        node: directory of the node in the hierarchy of memory.
        below: where that hierarchy is mounted.
    Raises:  SupportError: no loop device, or no controller blkio or io.
    """

    def __init__(self, folder: Path, size_mib: int, node: Path, below: Path) -> None:
        found = find_controllers()
        mount = found.get("blkio") or found.get("io")
        if mount is None:
            raise SupportError(
                "disk", "this machine has no controller blkio or io", "Boot a kernel with CONFIG_BLK_CGROUP"
            )
        self._mount: ControllerMount = mount
        self._node, self._below = node, below
        self._made: list[Path] = []  # parents first
        image = folder / "disk"
        image.write_bytes(b"\1" * (size_mib * MIB))  # no holes: a hole is read without the disk
        self.path = _attached(image)

    def join(self, container: Path) -> Path:
        """Return the file that a process of this container writes itself to, so that its block IO counts."""
        if self._mount.version == 2:
            levels = [each for each in reversed(container.parents) if each.is_relative_to(self._below)]
            for each in levels:
                (each / "cgroup.subtree_control").write_text("+io")
            return container / "cgroup.procs"
        at = self._mount.mount_point
        for name in container.relative_to(self._below).parts:
            at /= name
            if not at.exists():
                at.mkdir()
                self._made.append(at)
        return at / "cgroup.procs"

    def close(self) -> None:
        """Kill what is left in the directories, and remove them and the device."""
        for directory in reversed(self._made):
            end = time.monotonic() + _REMOVE_S
            while directory.exists() and time.monotonic() < end:
                with contextlib.suppress(OSError):
                    for pid in (directory / "cgroup.procs").read_text().split():
                        os.kill(int(pid), signal.SIGKILL)
                with contextlib.suppress(OSError):
                    directory.rmdir()
                time.sleep(0.02)
        subprocess.run(["losetup", "-d", self.path], check=False)


# Past the page cache where the file system can: else the disk would be as fast as memory.
def _attached(image: Path) -> str:
    for options in (["--direct-io=on"], []):
        command = ["losetup", "--find", "--show", *options, str(image)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.returncode:
            return done.stdout.strip()
    raise SupportError("disk", done.stderr.strip() or "losetup failed", "It needs a free loop device")
