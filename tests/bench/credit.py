"""What was predicted to come back with a pod's end, beside what came back."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, find_memory_hierarchy
from koordebpf.kube.sources.file import FileSource
from koordebpf.policy.credit import credit_bytes
from koordebpf.state.pods.facts import facts_of_pods
from tests.bench.figure import between
from tests.bench.report import Report
from tests.support.loads.workloads import Holder
from tests.support.nodes import MIB, NodeCgroup
from tests.support.values.builders import view_of_measured

_HELD_MIB = 256
_KINDS = {
    "anon": "anon",
    "memfd": "shmem",
    "sockets": "socket buffers",
    "pipes": "pipes",
    "tables": "page tables",
    "mixed": "mixed",
}
_SETTLED_S = 0.3
_MOST_S = 5.0


def credit(report: Report) -> None:
    """Kill a pod of each kind of memory, n = 20 each."""
    n = 3 if report.quick else 20
    hierarchy = find_memory_hierarchy()
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 2 * _HELD_MIB * MIB) as node:
        (container,) = node.add_pod("hog")
        for kind, name in _KINDS.items():
            ratios = [_ratio(node, container, kind) for _ in range(n)]
            report.add(
                between(
                    f"predicted ÷ came back, {name}",
                    "",
                    ratios,
                    0.9,
                    1.1,
                    f"{_HELD_MIB} MiB: the pod's credit ÷ what the node cgroup's usage without file LRU and reclaimable"
                    " slab fell by once it was killed; mixed: a quarter each of anon, sockets, pipes and page tables",
                )
            )


def _ratio(node: NodeCgroup, container: Path, kind: str) -> float:
    hierarchy = find_memory_hierarchy()
    scope = open_scope(hierarchy, node.path)
    with (
        tempfile.TemporaryDirectory() as folder,
        NodeWatch(scope, FileSource([node.write_manifest(Path(folder) / "pods.json")]), 1 << 62) as watch,
        CgroupMemory(node.path, hierarchy.version) as files,
    ):
        assert watch.source is not None
        watch.source.start(lambda: None)
        watch.cluster()
        collector = MemoryCollector(scope, watch.signals, watch.index)
        holder = Holder(container, kind, _HELD_MIB)
        try:
            pods = facts_of_pods(watch.source.state().pods)
            measured = collector.everything({}, (), None)
            view = view_of_measured(measured, pods)
            before = _settled(files)
        finally:
            holder.stop()
            collector.close()
        return credit_bytes(view.pods[0]) / max(before - _settled(files), 1)


# Once it has not changed for a while: sockets and page tables are freed a moment after their process.
def _settled(files: CgroupMemory) -> int:
    deadline = time.monotonic() + _MOST_S
    last, since = _used(files), time.monotonic()
    while time.monotonic() - since < _SETTLED_S and time.monotonic() < deadline:
        time.sleep(0.02)
        now = _used(files)
        if abs(now - last) > MIB // 4:
            last, since = now, time.monotonic()
    return last


def _used(files: CgroupMemory) -> int:
    stat = files.read()
    cache = stat.inactive_file_bytes + stat.active_file_bytes
    return stat.usage_bytes - cache - (stat.slab_reclaimable_bytes or 0)
