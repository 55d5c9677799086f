"""Watches a demo's node from outside the agent, with BPF programs of its own: usage, and stall sums by pod."""

from __future__ import annotations

import time

import msgspec

from koordebpf.collect.scope import open_scope, signal_request
from koordebpf.demo.crossing import Crossing, Usage
from koordebpf.demo.node import NodeCgroup
from koordebpf.demo.verdict import PodStalls
from koordebpf.errors import CgroupGone
from koordebpf.events.layout import check_layout, decode_stall
from koordebpf.kernel.backends.co_re import KernelSignals
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, MemoryHierarchy, cgroup_id
from koordebpf.kernel.signals.interface import SUMS_ONLY_NS, Backend
from koordebpf.state.measured import MemoryParts
from koordebpf.state.stalls.sums import ScanSums, cgroup_used_bytes
from koordebpf.units import PAGE_BYTES

_NO_PODS = 0  # version of what says whose the cgroups are: nothing, always


def open_sums(node: NodeCgroup, hierarchy: MemoryHierarchy) -> KernelSignals:
    """Return programs of their own for a node, to be closed: they sum up its stalls, and send nothing."""
    request = signal_request(open_scope(hierarchy, node.path), SUMS_ONLY_NS)
    return KernelSignals(request, check_layout)


class NodeObserver:
    """Reads the node's usage and its pods' stalls; each sample goes into `crossing`. Owns `signals`."""

    def __init__(self, node: NodeCgroup, signals: Backend, crossing: Crossing) -> None:
        self._node = node
        self._root_id = cgroup_id(node.path)
        self.crossing = crossing
        self._memory = CgroupMemory(node.path, node.version)
        self._pods = {name: CgroupMemory(path, node.version) for name, path in node.pod_paths.items()}
        self._signals = signals
        self._sums: ScanSums | None = None  # of the last sample

    def sample(self) -> Usage:
        """Read the node now. Cost: 30 µs."""
        memory = self._read()
        now = Usage(time.monotonic_ns(), memory.usage_bytes, cgroup_used_bytes(memory))
        self.crossing.push(now)
        return now

    # The LRU lists themselves where the kernel has a cgroup iterator: memory.stat of a cgroup lags by up to 2 s behind
    # what was charged to its children (6.18: flush_memcg_stats_dwork's period), and page cache looks used meanwhile.
    def _read(self) -> MemoryParts:
        slab_reclaimable = None
        if self._node.version == 2 or not self._signals.can_scan:
            stat = self._memory.read()
            slab_reclaimable = stat.slab_reclaimable_bytes
        if self._signals.can_scan:
            rows = self._signals.scan()
            try:
                sums = self._sums = ScanSums(bytes(rows), lambda _: None, PAGE_BYTES, self._sums, _NO_PODS)
            finally:
                rows.release()
            if (memory := sums.all(self._root_id)) is None:
                raise CgroupGone(str(self._node.path))
            return msgspec.structs.replace(memory, slab_reclaimable_bytes=slab_reclaimable)
        return MemoryParts(
            stat.usage_bytes,
            stat.inactive_anon_bytes,
            stat.active_anon_bytes,
            stat.inactive_file_bytes,
            stat.active_file_bytes,
            stat.unevictable_bytes,
            slab_reclaimable_bytes=slab_reclaimable,
        )

    def pod_usage_bytes(self) -> dict[str, int]:
        """Return each pod's raw usage."""
        return {name: memory.usage_bytes() for name, memory in self._pods.items()}

    def stalls_unseen(self) -> str | None:
        """Return why stalls cannot be seen here; None: they can."""
        missing = [source for source in self._signals.sources if "stalls" in source.signal and not source.works]
        return missing[0].reason if missing else None

    def stalls(self) -> dict[str, PodStalls]:
        """Return what each pod stalled since this object was made, those that did not with zeros."""
        names = self._node.pods_by_cgroup_id()
        sums = {name: PodStalls() for name in self._node.pod_paths}
        for key, value in self._signals.stalls():
            stall = decode_stall(key, value)
            if (name := names.get(stall.cgroup_id)) is None:
                continue
            before = sums[name]
            sums[name] = PodStalls(
                before.node_count + stall.global_.count,
                before.node_ns + stall.global_.total_ns,
                before.limit_count + stall.limit.count,
                before.limit_ns + stall.limit.total_ns,
            )
        return sums

    def close(self) -> None:
        """Detach the programs and close every fd."""
        self._signals.close()
        for memory in (self._memory, *self._pods.values()):
            memory.close()
