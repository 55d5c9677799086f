"""An agent that has lost the API server: what it still may decide, and on which pods."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from koordebpf.act.evict.actuator import Actuator
from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.act.guards.emergency import EmergencySettings, emergency
from koordebpf.agent.config.settings import AgentConfig
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.policy.detect import be_memory_evict
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.view import Measured, NodeView
from koordebpf.store.pod_list import KeptList
from koordebpf.units import format_ns

log = logging.getLogger("koordebpf")


class Emergency:
    """Remembers which cgroup each pod had when the list of pods was last good, and kills by `executor` since.

    Args:
        settings: when, and for how long.
        fresh_ns: up to this age the list is good.
        executor: kills cgroups.
        kept: what the agent before knew, and where this one keeps it.
    """

    def __init__(
        self, settings: EmergencySettings, fresh_ns: int, executor: Actuator, kept: KeptList | None = None
    ) -> None:
        self.executor = executor
        self._kept = kept
        self._settings = settings
        self._fresh_ns = fresh_ns
        self._cgroups: Mapping[str, int | None] = kept.cgroups if kept else {}

    def look(self, measured: Measured, state: ClusterState) -> str | None:
        """Return the sentence of the emergency; None: there is none, there is no list yet, or the server says no."""
        if not state.synced_at_ns:
            return None
        age_ns = measured.now_ns - state.synced_at_ns
        if age_ns <= self._fresh_ns:
            if self._kept is None or self._kept.state is None:
                self._cgroups = {pod.uid: pod.cgroup_id for pod in measured.pods}
            if self._kept is not None and self._kept.state is None:
                self._kept.note(state, self._cgroups)
            return None
        return None if state.is_denied else emergency(age_ns, self._settings)

    def narrowed(self, view: NodeView, facts: Iterable[PodFacts]) -> NodeView:
        """Return the node as the decision may see it now: for a kill by cgroup, by BEMemoryEvict alone.

        The pods are those that are still the ones of the last good list, the same uid in the same cgroup. Who refused
        an eviction was the API server, so no pod counts as refused.
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


def open_emergency(
    config: AgentConfig,
    by_cgroup: Callable[[], CgroupExecutor],
    kept_list: KeptList | None,
    stack: contextlib.ExitStack,
) -> Emergency | None:
    """Return it where the configuration asks for one; `by_cgroup` makes the executor that the stack closes."""
    if config.emergency.action != "kill-be":
        return None
    executor = by_cgroup()
    stack.callback(executor.close)
    after, until = config.emergency.after_ns, config.emergency.max_age_ns
    log.info(
        "%s to %s after the last word of the API server best-effort pods are killed by cgroup if need be",
        format_ns(after),
        format_ns(until),
    )
    return Emergency(config.emergency, config.guards.pods_max_age_ns, executor, kept_list)


def open_kept_list(
    config: AgentConfig, folder: Path | None, stack: contextlib.ExitStack, *, knows_pods: bool = False
) -> KeptList | None:
    """Return it for an agent that acts, with `folder`, and may do so without the API server."""
    if folder is None or config.source != "api" or config.emergency.action != "kill-be":
        return None
    kept = KeptList(folder / "pods.json", config.node_name or "", config.emergency.max_age_ns)
    if knows_pods:
        kept.drop()
    stack.callback(kept.close)
    return kept
