"""PSI triggers of the pods that must not stall: they wake the loop when one of them does. cgroup v2 only."""

from __future__ import annotations

import time

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.scope import NodeScope
from koordebpf.kernel.io.loop import Loop
from koordebpf.kernel.proc.psi import PsiTriggers
from koordebpf.kube.cache.objects import Pod
from koordebpf.slo.pods.qos import koord_qos_or_default
from koordebpf.units import NS_PER_S

_LATENCY_SENSITIVE = ("LSE", "LSR", "LS")
_EVERY_NS = NS_PER_S  # Why: a pod that is new stalls its node's own trigger too


class PodPressure:
    """PSI triggers by pod: one for each latency-sensitive pod that runs, closed when the pod is gone."""

    def __init__(self, scope: NodeScope, index: CgroupIndex, loop: Loop) -> None:
        self.triggers = PsiTriggers()
        self._scope = scope
        self._index = index
        self._loop = loop
        self._looked_ns = 0

    def follow(self, pods: tuple[Pod, ...]) -> None:
        """Have triggers for the latency-sensitive ones of these pods; looks at most once a second."""
        now_ns = time.monotonic_ns()
        if self._scope.hierarchy.version == 1 or now_ns - self._looked_ns < _EVERY_NS:
            return
        self._looked_ns = now_ns
        cgroups, wanted = self._index.pod_cgroups(), {}
        for pod in pods:
            if koord_qos_or_default(pod.metadata.labels, pod.status.qosClass or "") not in _LATENCY_SENSITIVE:
                continue
            if (cgroup_id := cgroups.get(pod.uid)) is not None and (path := self._index.path(cgroup_id)) is not None:
                wanted[cgroup_id] = self._scope.hierarchy.mount_point / path
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
