"""An agent that has lost the API server: what it still may decide, and on which pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from koordebpf.act.actuator import Actuator
from koordebpf.act.emergency import EmergencySettings, emergency
from koordebpf.detect import be_memory_evict
from koordebpf.kube.objects import ClusterState
from koordebpf.state.facts import PodFacts
from koordebpf.state.view import Measured, NodeView


class Emergency:
    """Remembers which cgroup each pod had when the list of pods was last good, and kills by `executor` since.

    Args:
        settings: when, and for how long.
        fresh_ns: up to this age the list is good.
        executor: kills cgroups.
    """

    def __init__(self, settings: EmergencySettings, fresh_ns: int, executor: Actuator) -> None:
        self.executor = executor
        self._settings = settings
        self._fresh_ns = fresh_ns
        self._cgroups: Mapping[str, int | None] = {}

    def look(self, measured: Measured, state: ClusterState) -> str | None:
        """Return the sentence of the emergency; None: there is none, there is no list yet, or the server says no."""
        if not state.synced_at_ns:
            return None
        age_ns = measured.now_ns - state.synced_at_ns
        if age_ns <= self._fresh_ns:
            self._cgroups = {pod.uid: pod.cgroup_id for pod in measured.pods}
            return None
        return None if state.is_denied else emergency(age_ns, self._settings)

    def narrowed(self, view: NodeView, facts: Iterable[PodFacts]) -> NodeView:
        """Return the node as the decision may see it now: for a kill by cgroup, by BEMemoryEvict alone.

        The pods are those that are still the ones of the last good list, the same uid in the same cgroup. Who refused
        an eviction was the API server, so nobody counts as refused.
        """
        known = {each.uid: each for each in facts}
        pods = [
            replace(pod, keeps_tmpfs=known[pod.uid].keeps_tmpfs("cgroup"))
            for pod in view.pods
            if pod.cgroup_id is not None and self._cgroups.get(pod.uid) == pod.cgroup_id
        ]
        be = be_memory_evict.FEATURE
        gates = {name: is_on and name == be for name, is_on in view.feature_gates.items()}
        return replace(view, pods=tuple(pods), feature_gates=gates, executor="cgroup", refused=())
