"""Pressure of memory as the kernel says it: of the node, and of single cgroups."""

from __future__ import annotations

from collections.abc import Collection

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.scope import NodeScope
from koordebpf.errors import CgroupGone, KernelFileError, SupportError
from koordebpf.kernel.proc.psi import NODE_MEMORY_PRESSURE, PressureFile, PressureLine
from koordebpf.state.measured import PsiLine, StallShares


class PressureFiles:
    """Kept memory.pressure files. `are_there`: each cgroup has one; on v1 and with psi=0 there is none."""

    def __init__(self, scope: NodeScope, index: CgroupIndex) -> None:
        self._scope = scope
        self._index = index
        self._node = _open_pressure(scope)
        self._pods: dict[int, PressureFile] = {}
        self.are_there = scope.hierarchy.version == 2 and _has_psi()

    def keep_only(self, cgroup_ids: Collection[int]) -> None:
        """Close the files of all other cgroups."""
        for cgroup_id in self._pods.keys() - set(cgroup_ids) if self._pods else ():
            self._pods.pop(cgroup_id).close()

    def node(self) -> tuple[PsiLine | None, PsiLine | None]:
        """Return the node's PSI lines, `some` and `full`; None where this kernel or cgroup version has none."""
        if self._node is None:
            return None, None
        read = self._node.read()
        return _psi_line(read.some), _psi_line(read.full)

    def of(self, cgroup_id: int) -> StallShares | None:
        """Return what a cgroup's memory.pressure says, by a kept fd; None: gone, it has none, or of an unknown form."""
        try:
            file = self._pods.get(cgroup_id)
            if file is None:
                path = self._index.path(cgroup_id)
                if path is None:
                    return None
                file = PressureFile(self._scope.hierarchy.mount_point / path / "memory.pressure")
                self._pods[cgroup_id] = file
            read = file.read()
        except (CgroupGone, SupportError, KernelFileError):
            if gone := self._pods.pop(cgroup_id, None):
                gone.close()
            return None
        some, full = _psi_line(read.some), _psi_line(read.full)
        return StallShares(some, full, derived=False) if some else None

    def close(self) -> None:
        """Close every fd."""
        if self._node is not None:
            self._node.close()
        for file in self._pods.values():
            file.close()
        self._pods.clear()


def _open_pressure(scope: NodeScope) -> PressureFile | None:
    # A v1 cgroup has no pressure file: its stalls come from the reclaim programs alone.
    if scope.kind == "cgroup" and scope.hierarchy.version == 1:
        return None
    try:
        return PressureFile(NODE_MEMORY_PRESSURE if scope.kind == "machine" else scope.path / "memory.pressure")
    except SupportError:
        return None


def _has_psi() -> bool:
    try:
        PressureFile(NODE_MEMORY_PRESSURE).close()
    except SupportError:
        return False
    return True


def _psi_line(line: PressureLine | None) -> PsiLine | None:
    return PsiLine(line.avg10, line.avg60, line.avg300, line.total_us) if line else None
