"""The node's disk: a file system on a loop device, which all pods of the node use."""

from __future__ import annotations

import subprocess
from pathlib import Path

from koordebpf.kernel.io.closing import Closing
from koordebpf.units import MIB
from tests.bench.report import CannotMeasure


class NodeDisk(Closing):
    """An ext4 on a loop device, mounted at `mount`; `close` removes both."""

    def __init__(self, folder: Path, size_mib: int) -> None:
        self.mount = folder / "disk"
        self._image = folder / "disk.image"
        self.mount.mkdir()
        with self._image.open("wb") as file:
            file.truncate(size_mib * MIB)
        # The kernel of a guest finds no modules where the tests run in a chroot.
        subprocess.run(["chroot", "/proc/1/root", "modprobe", "loop"], capture_output=True, check=False)
        self.path = _run("losetup", "--find", "--show", "--direct-io=on", str(self._image)).strip()
        try:
            # Block groups are initialized now and not beside the first cells.
            _run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.path)
            _run("mount", "-o", "noatime", self.path, str(self.mount))
        except CannotMeasure:
            _run("losetup", "--detach", self.path)
            raise

    def close(self) -> None:
        _run("umount", str(self.mount))
        _run("losetup", "--detach", self.path)
        self._image.unlink()


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        raise CannotMeasure(f"needs {command[0]}") from None
    except subprocess.CalledProcessError as error:
        raise CannotMeasure(f"{' '.join(command)}: {error.stderr.strip()}") from None
