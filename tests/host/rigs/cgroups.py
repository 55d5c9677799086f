"""Cgroups of our own with cpu and cpuset files, on v1 below each of the two hierarchies, on v2 below the one."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.places import Places
from koordebpf.attribution.owner import Owner
from koordebpf.attribution.paths import place_of_path
from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.files import CgroupFile, Value, format_cpu_list
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.io.closing import Closing
from koordebpf.policy.reconcile import CgroupWrite, DesiredState
from tests.conftest import OTHER_MACHINE
from tests.host.rigs.live_node import BURN
from tests.support.hierarchies import Hierarchies

CPUS = CgroupFile.CPUSET_CPUS
QUOTA = CgroupFile.CPU_QUOTA
SHARES = CgroupFile.CPU_SHARES
IDLE = CgroupFile.CPU_IDLE

BE_ROOT = "kubepods/besteffort"
TREE = ("be", "be/pod", "be/pod/c1", "be/pod/c2")

_CONTROLLERS = ("cpu", "cpuset")
_number = itertools.count()


class Cgroups(Closing):
    """A directory for one test and what is made below it; paths are relative to it. `name` is relative to the mount.

    `more` are controllers whose files it has too, where the machine has them.
    """

    has_cpus = False  # on v1, where a new cpuset has none by itself

    def __init__(self, more: Collection[str] = ()) -> None:
        found = find_controllers()
        self.mounts = {name: found[name] for name in _CONTROLLERS}
        self.mounts |= {name: found[name] for name in more if name in found}
        self.places = Places(found)
        self.version = self.mounts["cpuset"].version
        self.name = f"kd-writer-{os.getpid()}-{next(_number)}"
        self._top = self.mounts["cpu"].mount_point / self.name
        self.hierarchies = Hierarchies(self._top, self.mounts["cpu"], self.mounts)
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self.make("")
        except BaseException:
            self.close()
            raise

    def path(self, path: str = "") -> str:
        """Return the path of a cgroup relative to the mount."""
        return f"{self.name}/{path}".rstrip("/")

    def make(self, path: str) -> None:
        """Make a cgroup, on v1 with its parent's memory nodes."""
        self.hierarchies.make(self._top / path, with_cpus=self.has_cpus)

    def remove(self, path: str) -> None:
        self.hierarchies.remove(self._top / path)

    def file(self, path: str, file: CgroupFile) -> Path:
        found = self.places.locate((self.path(path), file))
        assert found is not None
        return found

    def text(self, path: str, file: CgroupFile) -> str:
        return self.file(path, file).read_text()

    def put(self, path: str, file: CgroupFile, text: str) -> None:
        """Write from another process."""
        script = 'printf %s "$1" > "$0"'
        subprocess.run(["sh", "-c", script, str(self.file(path, file)), text], check=True, capture_output=True)

    def join(self, path: str, pid: int) -> None:
        self.hierarchies.join(self._top / path, pid)

    def start(self, path: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process in a cgroup of every hierarchy."""
        process = subprocess.Popen(command)
        self._processes.append(process)
        self.join(path, process.pid)
        return process

    def populate(self, path: str) -> int:
        """Put a sleeping process into a cgroup; return its pid."""
        return self.start(path, "sleep", "600").pid

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self.hierarchies.remove(self._top)


class CpuNode(Cgroups):
    """Cgroups with CPU accounting too, which v1 may have in a hierarchy of its own, named as kubelet names them."""

    has_cpus = True

    def __init__(self) -> None:
        super().__init__(("cpuacct",))

    def put_cpus(self, path: str, text: str) -> None:
        self.file(path, CPUS).write_text(text)

    def burn(self, path: str) -> subprocess.Popen[bytes]:
        """Start a process that uses all CPU it gets."""
        return self.start(path, *BURN)

    def owners(self) -> list[Owner]:
        """Return who owns which directory, by its path alone."""
        owners = []
        for directory, _, _ in os.walk(self._top):
            path = str(self.hierarchies.relative(Path(directory)))
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


@contextlib.contextmanager
def cpu_node() -> Iterator[CpuNode]:
    """Give a node with one best-effort and one burstable pod of one container each."""
    with CpuNode() as node:
        paths = ("kubepods", BE_ROOT, f"{BE_ROOT}/podbe-1", f"{BE_ROOT}/podbe-1/c1")
        for path in (*paths, "kubepods/burstable", "kubepods/burstable/podls-1", "kubepods/burstable/podls-1/c1"):
            node.make(path)
        yield node


@contextlib.contextmanager
def made_cgroups(more: Collection[str] = ()) -> Iterator[Cgroups]:
    """Give cgroups for one test and remove them afterwards; skip where none can be made."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes cgroups")
    try:
        cgroups = Cgroups(more)
    except (SupportError, KeyError, OSError) as error:
        pytest.skip(f"{OTHER_MACHINE}it has no cpu and cpuset hierarchies that can be written: {error}")
    with cgroups:
        yield cgroups


def two_cpus() -> tuple[int, int]:
    """Return two CPUs that may be given to a cgroup; skip on a machine of one."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip(f"{OTHER_MACHINE}it has one CPU")
    return cpus[0], cpus[1]


def desired(cgroups: Cgroups, *writes: tuple[str, CgroupFile, Value]) -> DesiredState:
    """Return what a test wants of files: path, file and value of each."""
    return DesiredState("a test", tuple(CgroupWrite(cgroups.path(path), file, value) for path, file, value in writes))


def be_tree(cgroups: Cgroups, cpus: Collection[int]) -> None:
    """Make the directories of `TREE`, each with these CPUs."""
    for path in ("", *TREE):
        if path:
            cgroups.make(path)
        cgroups.put(path, CPUS, format_cpu_list(cpus))
