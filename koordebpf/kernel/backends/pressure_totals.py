"""Time lost to memory in each cgroup, from the totals of the memory.pressure files; without them, counts of limit hits.

The kernel does not tell there whose shortage it was. What is known besides decides, for each interval and leaf cgroup:
the cgroup or one above it hit its limit: `limit`; else the machine (or the node's own limit) reclaimed directly:
`global`; else it compacted: `compaction`; else `other_global`, which is refault and swap-in.
"""

from __future__ import annotations

import errno
import os
import time

from koordebpf.errors import CgroupGone, KernelFileError, SupportError
from koordebpf.kernel.backends.limit_events import LimitEvents
from koordebpf.kernel.backends.packing import pack_stall
from koordebpf.kernel.cgroup.tree import CgroupTree, TreeCgroup
from koordebpf.kernel.proc.psi import NODE_MEMORY_PRESSURE, PressureFile
from koordebpf.kernel.proc.vmstat import VmstatValues
from koordebpf.kernel.signals.interface import SignalRequest, SignalSource

# Members of struct koord_stall, by place.
_GLOBAL, _LIMIT, _COMPACTION, _OTHER_GLOBAL, _CAUSES = 0, 1, 2, 4, 6
_NS_PER_US = 1_000
_FILE_BYTES = 1 << 10


class _Account:
    __slots__ = ("changed_ns", "counts", "some_ns", "times_ns", "total_us")

    def __init__(self, total_us: int) -> None:
        self.total_us = total_us  # as read last
        self.counts = [0] * _CAUSES
        self.times_ns = [0] * _CAUSES
        self.some_ns = 0
        self.changed_ns = 0


class PressureTotals:
    """What each cgroup of a tree stalled since start."""

    def __init__(self, tree: CgroupTree, request: SignalRequest) -> None:
        self._tree = tree
        self._is_machine = request.node_cgroup_id is None
        self._accounts: dict[int, _Account] = {}
        self._vmstat: VmstatValues | None = None
        self._node = self._open_node(request)
        self._node_first_us = self._node_us = self._read_node()
        self._node_changed_ns = time.monotonic_ns()
        self._descended_us = -1
        self.has_cgroups = request.hierarchy_version == 2 and self._node is not None
        if self.has_cgroups:
            stack = [tree.root]
            while stack:
                cgroup = stack.pop()
                self._accounts[cgroup.cgroup_id] = _Account(_some_us(cgroup) or 0)
                stack.extend(cgroup.children.values())

    @staticmethod
    def _open_node(request: SignalRequest) -> PressureFile | None:
        if request.node_cgroup_id is not None and request.hierarchy_version == 1:
            return None
        path = NODE_MEMORY_PRESSURE if request.node_cgroup_id is None else request.root / "memory.pressure"
        try:
            file = PressureFile(path)
        except (SupportError, CgroupGone):
            return None
        try:
            file.read()
        except SupportError:  # psi=0 shows itself at the first read
            file.close()
            return None
        return file

    def _read_node(self) -> int:
        return self._node.read().some.total_us if self._node else 0

    def node_some_ns(self, now_ns: int) -> tuple[int, int]:
        """Return how long some task of the node stalled since start, and when that was seen to change."""
        node_us = self._read_node()
        if node_us != self._node_us:
            self._node_us, self._node_changed_ns = node_us, now_ns
        return (node_us - self._node_first_us) * _NS_PER_US, self._node_changed_ns

    def born(self, cgroup: TreeCgroup) -> None:
        """Count a new cgroup from zero."""
        self._accounts[cgroup.cgroup_id] = _Account(0)

    def died(self, cgroup: TreeCgroup) -> None:
        """Forget a cgroup that is gone."""
        self.forget(cgroup.cgroup_id)

    def forget(self, cgroup_id: int) -> None:
        """Forget the sums of an id."""
        self._accounts.pop(cgroup_id, None)

    def stalls(self, vmstat: VmstatValues, limits: LimitEvents, now_ns: int) -> list[tuple[bytes, bytes]]:
        """Return cgroup id and struct koord_stall of every cgroup that stalled or hit its limit.

        `count` is how often a limit was hit, and for the other causes in how many looks the time rose. A cgroup with
        children has a row with its `some_ns` only, as the contract says. The time is that of the pressure file: at
        least one task stalled, which is less than the sum over tasks.
        """
        hits = limits.take_hits()
        for cgroup_id, count in hits.items():
            account = self._accounts.setdefault(cgroup_id, _Account(0))
            account.counts[_LIMIT] += count
            account.changed_ns = now_ns
        node_us = self._read_node()
        if self.has_cgroups and node_us != self._descended_us:
            self._descended_us = node_us
            self._descend(self._node_cause(vmstat, hits), hits, now_ns)
        self._vmstat = vmstat
        return [
            (
                cgroup_id.to_bytes(8, "little"),
                pack_stall(tuple(zip(each.counts, each.times_ns, strict=True)), each.some_ns, each.changed_ns),
            )
            for cgroup_id, each in self._accounts.items()
            if each.changed_ns
        ]

    def _node_cause(self, now: VmstatValues, hits: dict[int, int]) -> int:
        before = self._vmstat or now
        if now.allocstall != before.allocstall or (not self._is_machine and self._tree.root.cgroup_id in hits):
            return _GLOBAL
        return _COMPACTION if now.compact_stall != before.compact_stall else _OTHER_GLOBAL

    # A cgroup's total rises with any of its descendants': what did not rise need not be looked into.
    def _descend(self, node_cause: int, hits: dict[int, int], now_ns: int) -> None:
        stack = [(self._tree.root, node_cause)]
        while stack:
            cgroup, cause = stack.pop()
            is_root = cgroup is self._tree.root
            if not is_root and cgroup.cgroup_id in hits:
                cause = _LIMIT
            if not (is_root and self._is_machine):
                account = self._accounts.setdefault(cgroup.cgroup_id, _Account(0))
                total_us = _some_us(cgroup)
                if total_us is None or total_us <= account.total_us:
                    continue
                grown_ns = (total_us - account.total_us) * _NS_PER_US
                account.total_us = total_us
                account.some_ns += grown_ns
                account.changed_ns = now_ns
                if not cgroup.children:
                    account.times_ns[cause] += grown_ns
                    account.counts[cause] += cause != _LIMIT or cgroup.cgroup_id not in hits
            stack.extend((child, cause) for child in cgroup.children.values())

    def sources(self) -> list[SignalSource]:
        """Return how reclaim stalls are obtained."""
        if self.has_cgroups:
            how, cost = "memory.pressure of each cgroup", "time without single stalls; refaults and swap-ins are in it"
            limit = f"{how}, while memory.events says that a limit is hit"
            return [
                SignalSource("global reclaim stalls", how, True, "no program times them", "Use BPF.", cost),
                SignalSource("memcg-limit reclaim stalls", limit, True, "no program times them", "Use BPF.", cost),
            ]
        why = "cgroup v1 has no memory.pressure" if self._node or not self._is_machine else "no pressure accounting"
        return [
            SignalSource(
                "global reclaim stalls",
                "/proc/vmstat allocstall, for the node alone",
                False,
                why,
                "Use BPF, or cgroup v2 with psi=1.",
                "stalls of pods are not timed",
            ),
            SignalSource(
                "memcg-limit reclaim stalls",
                "limit hits counted",
                False,
                why,
                "Use BPF, or cgroup v2 with psi=1.",
                "hits of a limit are counted, not timed",
            ),
        ]

    def close(self) -> None:
        """Close the node's file; twice is harmless."""
        if self._node:
            self._node.close()


# None: gone, without pressure files, or switched off for this cgroup (cgroup.pressure).
def _some_us(cgroup: TreeCgroup) -> int | None:
    try:
        fd = os.open(f"{cgroup.path}/memory.pressure", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENODEV, errno.ENOENT, errno.EOPNOTSUPP):
            raise
        return None
    try:
        text = os.read(fd, _FILE_BYTES)
    except OSError as error:
        if error.errno not in (errno.ENODEV, errno.EOPNOTSUPP):
            raise
        return None
    finally:
        os.close(fd)
    some, _, _ = text.partition(b"\n")
    _, _, total = some.rpartition(b"total=")
    if not total.isdigit():
        raise KernelFileError(
            f"{cgroup.path}/memory.pressure", some.decode(errors="backslashreplace"), "must end with total=<µs>"
        )
    return int(total)
