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
from koordebpf.errors import SupportError
from koordebpf.jobs.usage_series.collector import UsageCollector
from koordebpf.jobs.usage_series.cpu import cpu_mounts
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, cgroup_id, find_controllers, find_memory_hierarchy
from koordebpf.kube.sources.file import FileSource
from koordebpf.state.series.store import NodeSeries, node_series
from koordebpf.units import NS_PER_S, PAGE_BYTES
from tests.conftest import OTHER_MACHINE
from tests.host.rigs.live_node import LiveNode
from tests.support.nodes import MIB, NodeCgroup

HELD = 16 * MIB  # what files say at least of one that burns CPU time
# MEMCG_CHARGE_BATCH (mm/memcontrol.c) of each CPU are in no sum of memory.stat yet.
_NOT_COUNTED_YET = 64 * PAGE_BYTES * (os.cpu_count() or 1)
_BURN = f"import time; time.sleep(0.2); held = bytearray({HELD + _NOT_COUNTED_YET})\nwhile True: pass"


class UsageNode(LiveNode):
    """Pods with CPU accounting, on a node of its own or a given one. `mounts` are those that usage is read from."""

    def __init__(self, node: NodeCgroup | None = None) -> None:
        self.hierarchy = hierarchy = find_memory_hierarchy()
        self.mounts = cpu_mounts(find_controllers(), ControllerMount(hierarchy.version, hierarchy.mount_point))
        super().__init__(
            node or NodeCgroup(hierarchy.mount_point, hierarchy.version, 1024 * MIB),
            ("cpu", "cpuacct", "memory"),
            levels=None,
            is_own=node is None,
        )

    def accounted_ns(self, path: Path) -> tuple[int, int]:
        """Return what the kernel's file says of a cgroup's CPU time, and how exact the file is. Nanoseconds."""
        (file,) = self.stat_files([path])
        if file.name == "cpuacct.usage":
            return int(file.read_text()), 1
        rows = dict(line.split() for line in file.read_text().splitlines())
        return int(rows["usage_usec"]) * 1000, 1000

    def stat_files(self, paths: Iterable[Path]) -> list[Path]:
        """Return cpu.stat of these, or what v1 has in its place."""
        accounting = self.mounts[0]
        name = "cpuacct.usage" if accounting.version == 1 else "cpu.stat"
        return [accounting.mount_point / self.path(path) / name for path in paths]

    def burn(self, container: Path) -> subprocess.Popen[bytes]:
        return self.start(container, sys.executable, "-S", "-c", _BURN)


class MeasuredUsage:
    """An agent's measuring: `round` takes a full measurement and then asks the collector."""

    def __init__(self, node: UsageNode, folder: Path, applications: Mapping[str, str], scan_root: Path | None) -> None:
        manifest = node.node.write_manifest(folder / "pods.json")
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
    with made:
        yield made


def uid_of(node: UsageNode, name: str) -> str:
    """Return the uid of a pod by its name."""
    return node.node.pod_paths[name].name.removeprefix("pod")


def group_of(path: Path) -> int:
    """Return a cgroup's id in the memory hierarchy."""
    return cgroup_id(path)
