"""PSI triggers of the pods that must not stall: they wake the loop when one of them does. cgroup v2 only."""

from __future__ import annotations

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import NodeScope
from koordebpf.kernel.io.loop import Loop
from koordebpf.kernel.proc.psi import PsiTriggers
from koordebpf.kube.cache.objects import Pod
from koordebpf.slo.pods.qos import koord_qos_or_default
from koordebpf.state.series.node import NodeSeries
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
            if koord_qos_or_default(pod.metadata.labels, pod.status.qosClass or "") not in _LATENCY_SENSITIVE:
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
