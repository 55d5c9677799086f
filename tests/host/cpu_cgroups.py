"""A node of real cgroups with CPU files and processes that burn, named as kubelet names them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from koordebpf.attribution.owner import Owner
from koordebpf.attribution.paths import place_of_path
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from tests.host.writer_cgroups import Cgroups

BE_ROOT = "kubepods/besteffort"
_BURN = "while True: pass"


class CpuNode(Cgroups):
    """Cgroups with CPU accounting too, which v1 may have in a hierarchy of its own."""

    def make(self, path: str) -> None:
        super().make(path)
        if (accounting := self._accounting()) is not None:
            (accounting / self.path(path)).mkdir()
        if self.version == 1:
            self.put_cpus(path, (self.mounts["cpuset"].mount_point / "cpuset.cpus").read_text())

    def outweigh(self) -> None:
        """Give the node more of the CPU than it would get beside many others, so that what works in it shows."""
        cpu = self.mounts["cpu"]
        name, weight = ("cpu.shares", 8 * 1024) if cpu.version == 1 else ("cpu.weight", 8 * 100)
        (cpu.mount_point / self.name / name).write_text(str(weight))

    def put_cpus(self, path: str, text: str) -> None:
        (self.mounts["cpuset"].mount_point / self.path(path) / "cpuset.cpus").write_text(text)

    def burn(self, path: str) -> subprocess.Popen[bytes]:
        """Start a process that uses all CPU it gets, in one cgroup of every hierarchy."""
        process = subprocess.Popen([sys.executable, "-S", "-c", _BURN])
        self._processes.append(process)
        self.join(path, process.pid)
        return process

    def join(self, path: str, pid: int) -> None:
        """Put a process into one cgroup of every hierarchy."""
        accounting = self._accounting()
        mounts = {mount.mount_point for mount in self.mounts.values()} | ({accounting} if accounting else set())
        for mount in mounts:
            (mount / self.path(path) / "cgroup.procs").write_text(str(pid))

    def vanish(self, path: str) -> None:
        """Remove one cgroup from every hierarchy."""
        self.remove(path)
        if (accounting := self._accounting()) is not None:
            (accounting / self.path(path)).rmdir()

    def owners(self) -> list[Owner]:
        """Return who owns which directory, by its path alone."""
        mount = self.mounts["cpu"].mount_point
        owners = []
        for directory, _, _ in os.walk(mount / self.name):
            path = str(Path(directory).relative_to(mount))
            place = place_of_path(path)
            owners.append(
                Owner(
                    cgroup_id=Path(directory).stat().st_ino,
                    kind=place.kind,
                    path=path,
                    pod_uid=place.pod_uid,
                    kube_qos=place.kube_qos,
                    host_application=place.host_application,
                )
            )
        return owners

    def close(self) -> None:
        super().close()
        if (accounting := self._accounting()) is not None:
            for directory, _, _ in os.walk(accounting / self.name, topdown=False):
                Path(directory).rmdir()

    def _accounting(self) -> Path | None:
        mount = find_controllers().get("cpuacct")
        others = {each.mount_point for each in self.mounts.values()}
        return mount.mount_point if mount is not None and mount.mount_point not in others else None


@contextlib.contextmanager
def cpu_node() -> Iterator[CpuNode]:
    """Give a node with one best-effort and one burstable pod of one container each."""
    node = CpuNode()
    try:
        paths = ("kubepods", BE_ROOT, f"{BE_ROOT}/podbe-1", f"{BE_ROOT}/podbe-1/c1")
        for path in (*paths, "kubepods/burstable", "kubepods/burstable/podls-1", "kubepods/burstable/podls-1/c1"):
            node.make(path)
        yield node
    finally:
        node.close()
