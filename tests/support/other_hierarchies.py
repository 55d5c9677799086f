"""The cgroups of a node in the hierarchies of cpu and cpuacct, which cgroup v1 has apart from memory's."""

from __future__ import annotations

import os
import time
from pathlib import Path

from koordebpf.collect.usage.cpu import cpu_mounts
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, MemoryHierarchy, find_controllers


class OtherHierarchies:
    """Makes there what is in the memory hierarchy. On v2 it is the same one, and gets the CPU controller."""

    def __init__(self, hierarchy: MemoryHierarchy) -> None:
        self._hierarchy = hierarchy
        self.mounts = cpu_mounts(find_controllers(), ControllerMount(hierarchy.version, hierarchy.mount_point))

    def follow(self, node: Path) -> None:
        """Take over what was made of a node since the last time."""
        if self._hierarchy.version == 2:
            (self._hierarchy.mount_point / "cgroup.subtree_control").write_text("+cpu")
        for directory, children, _ in os.walk(node):
            path = Path(directory)
            if self._hierarchy.version == 2:
                if children:
                    (path / "cgroup.subtree_control").write_text("+cpu")
                continue
            for mount in self.mounts:
                self.of(path, mount).mkdir(exist_ok=True)

    def of(self, path: Path, mount: ControllerMount) -> Path:
        """Return the same cgroup in another hierarchy."""
        return mount.mount_point / path.relative_to(self._hierarchy.mount_point)

    def everywhere(self, path: Path) -> set[Path]:
        """Return the same cgroup in all of them, memory's included."""
        return {path, *(self.of(path, mount) for mount in self.mounts)}

    def remove(self, node: Path) -> None:
        """Remove what `follow` made."""
        for mount in self.mounts if self._hierarchy.version == 1 else ():
            for directory, _, _ in os.walk(self.of(node, mount), topdown=False):
                removed(Path(directory))


def removed(path: Path) -> None:
    """Remove a cgroup; a process is out of cgroup.procs before it is out of the cgroup."""
    deadline = time.monotonic() + 10
    while path.exists():
        try:
            path.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
