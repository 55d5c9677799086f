"""Cgroups of our own with cpu and cpuset files, on v1 below each of the two hierarchies, on v2 below the one."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.places import Places
from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.files import CgroupFile, Value, format_cpu_list
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.policy.reconcile.values import CgroupWrite, DesiredState
from tests.conftest import OTHER_MACHINE
from tests.support.patience import patience

CPUS = CgroupFile.CPUSET_CPUS
QUOTA = CgroupFile.CPU_QUOTA
SHARES = CgroupFile.CPU_SHARES
IDLE = CgroupFile.CPU_IDLE

TREE = ("be", "be/pod", "be/pod/c1", "be/pod/c2")

_CONTROLLERS = ("cpu", "cpuset")
_number = itertools.count()


class Cgroups:
    """A directory for one test and what is made below it; paths are relative to it. `name` is relative to the mount.

    `more` are controllers whose files it has too, where the machine has them.
    """

    def __init__(self, more: Collection[str] = ()) -> None:
        mounts = find_controllers()
        self.mounts = {name: mounts[name] for name in _CONTROLLERS}
        self.mounts |= {name: mounts[name] for name in more if name in mounts}
        self.places = Places(mounts)
        self.version = self.mounts["cpuset"].version
        self.name = f"kd-writer-{os.getpid()}-{next(_number)}"
        self._processes: list[subprocess.Popen[bytes]] = []
        if self.version == 2:
            self._hand_down(self.mounts["cpu"].mount_point)
        self.make("")

    def path(self, path: str = "") -> str:
        """Return the path of a cgroup relative to the mount."""
        return f"{self.name}/{path}".rstrip("/")

    def make(self, path: str) -> None:
        """Make a cgroup, on v1 with its parent's memory nodes and no CPUs."""
        for mount in {mount.mount_point for mount in self.mounts.values()}:
            directory = mount / self.path(path)
            if self.version == 2 and path:
                self._hand_down(directory.parent)
            directory.mkdir()
            mems = directory / "cpuset.mems"
            if self.version == 1 and mems.exists():
                mems.write_text((directory.parent / "cpuset.mems").read_text())

    def remove(self, path: str) -> None:
        for mount in {mount.mount_point for mount in self.mounts.values()}:
            (mount / self.path(path)).rmdir()

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

    def populate(self, path: str) -> int:
        """Put a sleeping process into a cgroup of every hierarchy; return its pid."""
        process = subprocess.Popen(["sleep", "600"])
        self._processes.append(process)
        for mount in {mount.mount_point for mount in self.mounts.values()}:
            (mount / self.path(path) / "cgroup.procs").write_text(str(process.pid))
        return process.pid

    def close(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        for mount in {mount.mount_point for mount in self.mounts.values()}:
            for directory, _, _ in os.walk(mount / self.name, topdown=False):
                _remove(Path(directory))

    def _hand_down(self, directory: Path) -> None:
        (directory / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in self.mounts))


# A process is out of cgroup.procs before it is out of the cgroup.
def _remove(directory: Path) -> None:
    deadline = time.monotonic() + patience(5)
    while True:
        try:
            return directory.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@contextlib.contextmanager
def made_cgroups(more: Collection[str] = ()) -> Iterator[Cgroups]:
    """Give cgroups for one test and remove them afterwards; skip where none can be made."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes cgroups")
    try:
        cgroups = Cgroups(more)
    except (SupportError, KeyError, OSError) as error:
        pytest.skip(f"{OTHER_MACHINE}it has no cpu and cpuset hierarchies that can be written: {error}")
    try:
        yield cgroups
    finally:
        cgroups.close()


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
