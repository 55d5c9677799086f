"""A block device of its own, as a loop device on a file."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from koordebpf.units import MIB


class LoopDisk:
    """The device: `path`, and `number` as major:minor.

    Args:
        folder: for its file.
        size_mib: of the device.
    """

    def __init__(self, folder: Path, size_mib: int = 64) -> None:
        self.image = folder / "loop-disk"
        self.image.write_bytes(b"\1" * (size_mib * MIB))  # no holes: a hole is read without the disk
        # The kernel of a guest finds no modules where the tests run in a chroot.
        subprocess.run(["chroot", "/proc/1/root", "modprobe", "loop"], capture_output=True, check=False)
        self.path = self._attached("--direct-io=on") or self._attached()
        if not self.path:
            pytest.skip("needs a loop device")
        self.number = (Path("/sys/block") / Path(self.path).name / "dev").read_text().strip()

    def _attached(self, *options: str) -> str:
        command = ["losetup", "--find", "--show", *options, str(self.image)]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        subprocess.run(["losetup", "--detach", self.path], check=True)
        self.image.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
