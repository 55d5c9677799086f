"""A node's cgroups in every hierarchy: cgroup v1 has one for each controller, v2 one that hands controllers down."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from tests.support.patience import patience


class Hierarchies:
    """The same cgroups in several hierarchies, each given by its directory in the first one.

    Args:
        top: the node's directory, which all others are below.
        first: the hierarchy that it is in.
        mounts: of the controllers whose files the cgroups are to have.
        levels: so many of the node get the controllers on v2, the node's own the first one; None: all.
    """

    def __init__(
        self, top: Path, first: ControllerMount, mounts: Mapping[str, ControllerMount], levels: int | None = None
    ) -> None:
        self.mounts = dict(mounts)
        self._top, self._first, self._levels = top, first.mount_point, levels
        self._versions = {each.mount_point: each.version for each in (first, *mounts.values())}
        self._above: list[Path] = []  # parents first

    def relative(self, directory: Path) -> Path:
        """Return where a cgroup lies in every hierarchy."""
        return directory.relative_to(self._first)

    def everywhere(self, directory: Path) -> list[Path]:
        """Return a cgroup's directory in every hierarchy, beginning with the first one."""
        return [mount / self.relative(directory) for mount in self._versions]

    def make(self, directory: Path, *, with_cpus: bool = True) -> None:
        """Make one cgroup; a cpuset of v1 gets its parent's memory nodes, and its CPUs or none."""
        self._hand_down(directory.parent)
        for each in self.everywhere(directory):
            self._make(each, with_cpus=with_cpus)

    def follow(self) -> None:
        """Make in the other hierarchies what the first one has, and hand controllers down to it."""
        for each in reversed(self.relative(self._top).parents):
            self._above += self._mirror(self._first / each)
            self._hand_down(self._first / each)
        depth = len(self._top.parts)
        for name, children, _ in os.walk(self._top):
            directory = Path(name)
            self._mirror(directory)
            if children and (self._levels is None or len(directory.parts) - depth < self._levels):
                self._hand_down(directory)

    def join(self, directory: Path, pid: int) -> None:
        """Put a process into a cgroup."""
        for each in self.everywhere(directory):
            (each / "cgroup.procs").write_text(str(pid))

    def outweigh(self) -> str:
        """Give the node most of the CPU whatever runs beside it; return how, in words."""
        mount = self.mounts["cpu"]
        name, weight = ("cpu.shares", 16 * 1024) if mount.version == 1 else ("cpu.weight", 16 * 100)
        (mount.mount_point / self.relative(self._top) / name).write_text(str(weight))
        return f"{name} {weight} of the node among the machine's other loads"

    def remove(self, directory: Path) -> None:
        """Remove a cgroup and those below it, as soon as what was killed there has left."""
        for each in self.everywhere(directory):
            remove_tree(each)

    def close(self) -> None:
        """Remove what the other hierarchies have of the node, as `remove` does."""
        for each in self.everywhere(self._top)[1:]:
            remove_tree(each)
        for each in reversed(self._above):
            remove_when_empty(each)

    def _mirror(self, directory: Path) -> list[Path]:
        missing = [each for each in self.everywhere(directory) if not each.exists()]
        for each in missing:
            self._make(each)
        return missing

    def _make(self, directory: Path, *, with_cpus: bool = True) -> None:
        directory.mkdir()
        for name in ("cpuset.cpus", "cpuset.mems") if with_cpus else ("cpuset.mems",):
            file = directory / name
            if file.exists() and not (directory / "cgroup.controllers").exists():  # v2's are the parent's by themselves
                file.write_text((directory.parent / name).read_text())

    def _hand_down(self, directory: Path) -> None:
        for mount, version in self._versions.items():
            names = [f"+{name}" for name, each in self.mounts.items() if each.mount_point == mount]
            if version == 2 and names:
                (mount / self.relative(directory) / "cgroup.subtree_control").write_text(" ".join(names))


def remove_when_empty(directory: Path) -> None:
    """Remove one cgroup that may be gone; a process is out of cgroup.procs before it is out of the cgroup."""
    deadline = time.monotonic() + patience(60)  # a killed process first ends what it asked of the disk
    while directory.exists():
        try:
            directory.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def remove_tree(top: Path) -> None:
    """Remove a cgroup and those below it, children first."""
    for directory, _, _ in os.walk(top, topdown=False):
        remove_when_empty(Path(directory))
