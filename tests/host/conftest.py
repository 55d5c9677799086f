"""Fixtures on the running kernel. Everything happens in cgroups of our own below one directory for each run."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.errors import SupportError
from koordebpf.kernel.cgroupfs import MemoryHierarchy, cgroup_id, find_memory_hierarchy
from koordebpf.kernel.kill import KillTarget, kill_cgroup
from koordebpf.units import NS_PER_S

_number = itertools.count()


@pytest.fixture(scope="session")
def hierarchy() -> MemoryHierarchy:
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes cgroups and loads programs into the kernel")
    try:
        return find_memory_hierarchy()
    except SupportError as error:
        pytest.skip(f"needs a memory cgroup hierarchy: {error}")


@pytest.fixture(scope="session")
def run_cgroup(hierarchy: MemoryHierarchy) -> Iterator[Path]:
    """Give the directory of this test run; the memory controller is on for its children."""
    # Without "bpf" in it: tests look for BPF objects among the links of /proc/self/fd.
    top = hierarchy.mount_point / f"koord-test-{os.getpid()}"
    try:
        if hierarchy.version == 2:
            (hierarchy.mount_point / "cgroup.subtree_control").write_text("+memory")
        top.mkdir()
    except OSError as error:
        pytest.skip(f"needs a memory hierarchy that can be written: {error}")
    if hierarchy.version == 2:
        (top / "cgroup.subtree_control").write_text("+memory")
    yield top
    remove_cgroup(top, hierarchy)


@pytest.fixture
def memory_cgroup(run_cgroup: Path, hierarchy: MemoryHierarchy) -> Iterator[Path]:
    """Give a fresh memory cgroup; whatever runs in it or below it afterwards is killed, and it is removed."""
    path = run_cgroup / f"test-{next(_number)}"
    path.mkdir()
    yield path
    remove_cgroup(path, hierarchy)


def make_child(parent: Path, name: str) -> Path:
    """Make a memory cgroup below another, which on v2 may then hold no processes itself."""
    control = parent / "cgroup.subtree_control"
    if control.exists():
        control.write_text("+memory")
    (parent / name).mkdir()
    return parent / name


def remove_cgroup(path: Path, hierarchy: MemoryHierarchy) -> None:
    """Kill what is in the subtree and remove it, children first."""
    if not path.exists():
        return
    target = KillTarget(memory_path=path, cgroup_id=cgroup_id(path), version=hierarchy.version)
    kill_cgroup(target, deadline_ns=time.monotonic_ns() + 10 * NS_PER_S)
    for directory, _, _ in os.walk(path, topdown=False):
        _remove_when_empty(Path(directory))


# A process is out of cgroup.procs before it is out of the cgroup.
def _remove_when_empty(directory: Path) -> None:
    deadline_ns = time.monotonic_ns() + 5 * NS_PER_S
    while True:
        try:
            return directory.rmdir()
        except OSError:
            if time.monotonic_ns() > deadline_ns:
                raise
            time.sleep(0.01)
