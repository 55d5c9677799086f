"""Eviction while the API server is lost: which pods may still be evicted, and by which executor."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from koordebpf.act.evict.actuator import Actuator
from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.configuration.settings import AgentConfig
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.state.measured import Measured
from koordebpf.store.pod_list import KeptList
from koordebpf.units import format_ns

log = logging.getLogger("koordebpf")


class Emergency:
    """Remembers which cgroup each pod had when the list of pods was last good, and kills by `executor` since.

    Args:
        fresh_ns: up to this age the list is good.
        executor: kills cgroups.
        kept: what the agent before knew, and where this one keeps it.
    """

    def __init__(self, fresh_ns: int, executor: Actuator, kept: KeptList | None = None) -> None:
        self.executor = executor
        self._kept = kept
        self._fresh_ns = fresh_ns
        self._cgroups: dict[str, int | None] = dict(kept.cgroups) if kept else {}

    def listed_cgroups(self, measured: Measured, state: ClusterState) -> dict[str, int | None] | None:
        """Return the cgroup of each pod on the last good list, while the API server is lost.

        None: the list is good, or there is none yet, or the server answers, and says no.
        """
        if not state.synced_at_ns:
            return None
        if measured.now_ns - state.synced_at_ns <= self._fresh_ns:
            if self._kept is None or self._kept.state is None:
                self._cgroups = {pod.uid: pod.cgroup_id for pod in measured.pods}
            if self._kept is not None and self._kept.state is None:
                self._kept.update(state, self._cgroups)
            return None
        return None if state.is_denied else self._cgroups


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
    return Emergency(config.guards.pods_max_age_ns, executor, kept_list)


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
