"""A node of real cgroups in the hierarchies of memory, cpu and cpuacct, and an agent's measuring of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.collect.usage.collector import UsageCollector
from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import cgroup_id, find_memory_hierarchy
from koordebpf.kube.sources.file import FileSource
from koordebpf.state.series.node import NodeSeries, node_series
from koordebpf.units import NS_PER_S, PAGE_BYTES
from tests.conftest import OTHER_MACHINE
from tests.support.nodes import MIB, NodeCgroup
from tests.support.other_hierarchies import OtherHierarchies, removed

HELD = 16 * MIB  # what files say at least of one that burns CPU time
# MEMCG_CHARGE_BATCH (mm/memcontrol.c) of each CPU are in no sum of memory.stat yet.
_NOT_COUNTED_YET = 64 * PAGE_BYTES * (os.cpu_count() or 1)
_BURN = f"import time; time.sleep(0.2); held = bytearray({HELD + _NOT_COUNTED_YET})\nwhile True: pass"


class UsageNode:
    """Pods with CPU accounting. Containers are given by their directory in the memory hierarchy."""

    def __init__(self) -> None:
        self.hierarchy = hierarchy = find_memory_hierarchy()
        self._others = OtherHierarchies(hierarchy)
        self.mounts = self._others.mounts
        self.memory = NodeCgroup(hierarchy.mount_point, hierarchy.version, 1024 * MIB)
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._others.follow(self.memory.path)
        except BaseException:
            self.close()
            raise

    def add_pod(self, name: str, *, be: bool = True, containers: int = 1) -> list[Path]:
        made = self.memory.add_pod(name, be=be, containers=containers)
        self._others.follow(self.memory.path)
        return made

    def make(self, path: Path) -> None:
        """Make one cgroup in every hierarchy, by its directory in the memory hierarchy."""
        for directory in self._others.everywhere(path):
            directory.mkdir()
        if self.hierarchy.version == 2:
            (path.parent / "cgroup.subtree_control").write_text("+cpu +memory")

    def accounted_ns(self, path: Path) -> tuple[int, int]:
        """Return what the kernel's file says of a cgroup's CPU time, and how exact the file is. Nanoseconds."""
        directory = self._others.of(path, self.mounts[0])
        if self.mounts[0].version == 1:
            return int((directory / "cpuacct.usage").read_text()), 1
        rows = dict(line.split() for line in (directory / "cpu.stat").read_text().splitlines())
        return int(rows["usage_usec"]) * 1000, 1000

    def stat_files(self, paths: Iterable[Path]) -> list[Path]:
        """Return cpu.stat of these, or what v1 has in its place."""
        name = "cpuacct.usage" if self.mounts[0].version == 1 else "cpu.stat"
        return [self._others.of(path, self.mounts[0]) / name for path in paths]

    def limit_cpu(self, path: Path, quota_us: int, period_us: int = 100_000) -> None:
        directory = self._others.of(path, self.mounts[-1])
        if self.mounts[-1].version == 2:
            (directory / "cpu.max").write_text(f"{quota_us} {period_us}")
        else:
            (directory / "cpu.cfs_quota_us").write_text(str(quota_us))

    def run(self, path: Path, *command: str) -> subprocess.Popen[bytes]:
        """Start a process in a container, in every hierarchy."""
        process = subprocess.Popen(command)
        self._processes.append(process)
        for directory in self._others.everywhere(path):
            (directory / "cgroup.procs").write_text(str(process.pid))
        return process

    def burn(self, path: Path) -> subprocess.Popen[bytes]:
        return self.run(path, sys.executable, "-S", "-c", _BURN)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    def remove(self, path: Path) -> None:
        """Remove a cgroup without tasks from every hierarchy."""
        for directory in self._others.everywhere(path):
            removed(directory)

    def close(self) -> None:
        for process in self._processes:
            self.end(process)
        self._others.remove(self.memory.path)
        self.memory.close()


class MeasuredUsage:
    """An agent's measuring: `round` takes a full measurement and then asks the collector."""

    def __init__(self, node: UsageNode, folder: Path, applications: Mapping[str, str], scan_root: Path | None) -> None:
        manifest = node.memory.write_manifest(folder / "pods.json")
        scope = open_scope(node.hierarchy, scan_root)
        self._stack = contextlib.ExitStack()
        source = FileSource((manifest,))
        source.start(lambda: None)
        self.watch = self._stack.enter_context(NodeWatch(scope, source, 0))
        self.memory = MemoryCollector(scope, self.watch.signals, self.watch.index)
        self._stack.callback(self.memory.close)
        self.series: NodeSeries = node_series()
        self.usage = UsageCollector(
            scope, self.watch.index, self.memory, node.mounts, lambda: applications, with_page_cache=True
        )
        self.usage.rests = 0  # an emulated machine takes longer for a pass than there may be between two
        self._stack.callback(self.usage.close)
        self._manifest, self._node = manifest, node

    def round(self) -> None:
        self.watch.drain()
        self.watch.cluster()
        self.memory.everything({}, (), None)
        self.usage.collect(time.monotonic_ns(), self.series)

    def rounds(self, count: int, apart_s: float = 1.0) -> None:
        for number in range(count):
            if number:
                time.sleep(apart_s)
            self.round()

    def latest(self, *key: str) -> float | None:
        return self.series.query(key, time.monotonic_ns(), 60 * NS_PER_S, "latest")

    def count(self, since_ns: int, *key: str) -> float | None:
        now_ns = time.monotonic_ns()
        return self.series.query(key, now_ns, now_ns - since_ns, "count")

    def dropped(self) -> str:
        """Return what got no sample, for a failure's text."""
        rates = self.usage._rates
        return f"{rates.went_back} went back, {rates.too_old} too old: {rates._last}, {self.usage.groups.by_id}"

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def made_usage_node() -> Iterator[UsageNode]:
    """Give a node without pods; skip where none can be made."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes cgroups")
    try:
        made = UsageNode()
    except (SupportError, KeyError, OSError) as error:
        pytest.skip(f"{OTHER_MACHINE}it has no memory and cpu hierarchies that can be written: {error}")
    try:
        yield made
    finally:
        made.close()


def uid_of(node: UsageNode, name: str) -> str:
    """Return the uid of a pod by its name."""
    return node.memory.pod_paths[name].name.removeprefix("pod")


def group_of(path: Path) -> int:
    """Return a cgroup's id in the memory hierarchy."""
    return cgroup_id(path)
