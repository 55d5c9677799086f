"""A small disk of its own for containers' writable layers, as a loop-mounted ext4, and containers on overlays there."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from koordebpf.units import MIB
from tests.conftest import OTHER_MACHINE


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


class Layer:
    """One container: `upper` is its writable layer, `merged` its root filesystem."""

    def __init__(self, upper: Path, merged: Path) -> None:
        self.upper = upper
        self.merged = merged

    def write(self, name: str, size_mib: float) -> None:
        """Write a file through the container's root filesystem, to the disk."""
        path = self.merged / name
        with path.open("wb") as file:
            for _ in range(int(size_mib * 16)):
                file.write(b"x" * (MIB // 16))
        run("sync", "-f", path)

    def start(self, script: str, *cgroups: Path) -> subprocess.Popen[str]:
        """Run a shell script in the container and in these cgroups."""
        joined = "".join(f"echo $$ > {each}/cgroup.procs\n" for each in cgroups)
        command = ["sh", "-ec", f"{joined}exec chroot {self.merged} sh -ec '{script}'"]
        return subprocess.Popen(command, text=True, stdout=subprocess.DEVNULL)


class ImageDisk:
    """The disk. Layers are unmounted and the disk is removed at the end.

    Args:
        folder: for the image and the mounts.
        size_mib: of the disk.
        options: of mkfs.ext4; mount_options: of the mount.
    """

    def __init__(
        self, folder: Path, size_mib: int, options: Sequence[str] = (), mount_options: Sequence[str] = ()
    ) -> None:
        self.root = folder / "disk"
        self.root.mkdir(parents=True)
        self._folder = folder
        self._mounts: list[Path] = []
        # The kernel of a guest finds no modules where the tests run in a chroot.
        modules = ("loop", "ext4", "overlay", *(["quota_v2"] if mount_options else []))
        subprocess.run(["chroot", "/proc/1/root", "modprobe", "-a", *modules], capture_output=True, check=False)
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(size_mib * MIB)
        run("mkfs.ext4", "-q", "-F", "-m", "0", *options, image)
        try:
            self._mount("-o", ",".join(("loop", *mount_options)), image, self.root)
        except AssertionError as error:
            kind = f"{OTHER_MACHINE}it has no ext4 with {mount_options}" if mount_options else "needs a loop device"
            pytest.skip(f"{kind}: {error}")

    def layer(self, container_id: str, *, is_named: bool = True) -> Layer:
        """Make a container's root filesystem; `is_named`: its mount point has the container's id, as containerd's."""
        base = self.root / f"snapshots/{len(self._mounts)}"
        upper, work = base / "fs", base / "work"
        name = f"{container_id}/rootfs" if is_named else f"{len(self._mounts)}/merged"
        merged = self._folder / "run" / name
        for each in (upper, work, merged):
            each.mkdir(parents=True)
        self._mount("-t", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", "overlay", merged)
        return Layer(upper, merged)

    def _mount(self, *arguments: object) -> None:
        run("mount", *arguments)
        self._mounts.append(Path(str(arguments[-1])))

    def close(self) -> None:
        for each in reversed(self._mounts):
            run("umount", "-l", each)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
