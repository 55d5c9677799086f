"""Pressure of memory as the kernel says it: of the node, of single cgroups, and PSI triggers of pods (cgroup v2)."""

from __future__ import annotations

from collections.abc import Collection

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import NodeScope
from koordebpf.errors import KernelFileError, KernelProblem, SupportError
from koordebpf.kernel.io.loop import Loop
from koordebpf.kernel.proc.psi import NODE_MEMORY_PRESSURE, PressureFile, PressureLine, PsiTriggers
from koordebpf.kube.cache.objects import Pod
from koordebpf.slo.pods.qos import koord_qos_or_default
from koordebpf.state.measured import PsiLine, StallShares
from koordebpf.state.pods.effective import kube_qos_of_pod
from koordebpf.state.series.store import NodeSeries
from koordebpf.units import NS_PER_S

_LATENCY_SENSITIVE = ("LSE", "LSR", "LS")


class PodPressure:
    """PSI triggers by pod: one for each latency-sensitive pod that runs, closed when the pod is gone."""

    name = "pressure triggers of pods"
    period_ns = NS_PER_S  # Why: a pod that is new stalls its node's own trigger too

    def __init__(self, watch: NodeWatch, loop: Loop) -> None:
        self.triggers = PsiTriggers()
        self._watch = watch
        self._loop = loop

    def collect(self, now_ns: int, into: NodeSeries) -> None:
        """Have triggers for the latency-sensitive ones of the pods as they are now."""
        scope, source = self._watch.scope, self._watch.source
        if scope.hierarchy.version == 2 and source is not None:
            self._follow(scope, source.state().pods)

    def _follow(self, scope: NodeScope, pods: tuple[Pod, ...]) -> None:
        index, wanted = self._watch.index, {}
        cgroups = index.pod_cgroups()
        for pod in pods:
            if koord_qos_or_default(pod.metadata.labels, kube_qos_of_pod(pod)) not in _LATENCY_SENSITIVE:
                continue
            if (cgroup_id := cgroups.get(pod.uid)) is not None and (path := index.path(cgroup_id)) is not None:
                wanted[cgroup_id] = scope.hierarchy.mount_point / path
        new, closed = self.triggers.keep_only(wanted)
        for fd in closed:
            self._loop.unwatch(fd)
        for fd in new:
            self._loop.watch(fd, _nothing, priority=True)

    def close(self) -> None:
        """Remove every trigger."""
        for fd in self.triggers.keep_only({})[1]:
            self._loop.unwatch(fd)


def _nothing() -> None:
    """Let the tick that follows look."""


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
        """Return the node's PSI lines, `some` and `full`; None where there are none, or of another form."""
        if self._node is None:
            return None, None
        try:
            read = self._node.read()
        except KernelFileError:  # its reader counts it
            return None, None
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
        except KernelProblem:
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
