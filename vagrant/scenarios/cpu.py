"""CPU limits of a scenario's pods: quotas as kubelet writes them, in the hierarchy that has the cpu controller."""

from __future__ import annotations

import time
from pathlib import Path

from koordebpf.demo.node import DemoNode
from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.io.closing import Closing

_PERIOD_US = 100_000
_REMOVE_S = 10.0  # a process that was killed is still there for a moment


class CpuLimits(Closing):
    """Gives containers of a node CPU limits; `close` removes what was made for it, once their processes are killed.

    Args:
        made: the node.
    Raises:  SupportError: this machine has no cpu controller.
    """

    def __init__(self, made: DemoNode) -> None:
        mounts = find_controllers()
        if "cpu" not in mounts or "memory" not in mounts:
            raise SupportError("CPU limits", "no cpu controller is mounted", "Mount it")
        self._top = made.node.path
        self._memory, self._cpu = mounts["memory"].mount_point, mounts["cpu"]
        # On v1 CPU time may be counted in a hierarchy of its own, and sets of CPUs are in one.
        found = (mounts[name] for name in ("cpu", "cpuacct", "cpuset") if name in mounts)
        self._v1 = {mount.mount_point for mount in found if mount.version == 1 and mount.mount_point != self._memory}
        self._made: list[Path] = []  # parents first

    def limit(self, container: Path, millicpu: int) -> list[Path]:
        """Give a container and its pod a limit; return the files by which a process joins it, beside memory's."""
        levels = [container, *container.parents]
        below = [level for level in reversed(levels) if level == self._top or self._top in level.parents]
        if self._cpu.version == 2:
            for level in [self._memory, *below[:-1]]:
                (level / "cgroup.subtree_control").write_text("+cpu")
        for mount in sorted(self._v1):
            for level in below:
                self._make(mount / level.relative_to(self._memory))
        # The story is about the limit, and not about what else the machine does.
        name, weight = ("cpu.weight", "1600") if self._cpu.version == 2 else ("cpu.shares", "16384")
        (self._cpu.mount_point / self._top.relative_to(self._memory) / name).write_text(weight)
        for level in below:
            if level.name == "besteffort":  # as the kubelet weighs it
                name, weight = ("cpu.weight", "1") if self._cpu.version == 2 else ("cpu.shares", "2")
                (self._cpu.mount_point / level.relative_to(self._memory) / name).write_text(weight)
        for level in below[-2:]:
            directory = self._cpu.mount_point / level.relative_to(self._memory)
            quota = millicpu * _PERIOD_US // 1000
            name, text = ("cpu.max", f"{quota} {_PERIOD_US}") if self._cpu.version == 2 else ("cpu.cfs_quota_us", quota)
            (directory / name).write_text(str(text))
        return [mount / container.relative_to(self._memory) / "cgroup.procs" for mount in sorted(self._v1)]

    def close(self) -> None:
        """Remove the directories of v1."""
        until = time.monotonic() + _REMOVE_S
        for directory in reversed(self._made):
            while directory.exists():
                try:
                    directory.rmdir()
                except OSError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.01)
        self._made.clear()

    # A set of CPUs is empty at first where cpuset is mounted beside cpu, and takes no process then.
    def _make(self, directory: Path) -> None:
        if directory.exists():
            return
        directory.mkdir(parents=True)
        self._made.append(directory)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (directory / name).exists():
                (directory / name).write_text((directory.parent / name).read_text())
