"""What an agent that kills by itself needs: to see the processes, and to know where each pod's cgroup is."""

from __future__ import annotations

from collections.abc import Callable

from koordebpf.agent.config import AgentConfig
from koordebpf.agent.scope import NodeScope
from koordebpf.agent.watch import NodeWatch
from koordebpf.decide.evict.settings import Rung
from koordebpf.errors import SupportError
from koordebpf.kernel.kill import KillTarget
from koordebpf.kernel.pid_namespace import is_initial, is_of_a_pod


def check_kill_support(config: AgentConfig, scope: NodeScope) -> None:
    """Refuse to start where a kill would find nobody: cgroup v1 lists the processes of one's own pid namespace only.

    cgroup v2 has cgroup.kill, which asks for no process's number.

    Raises:  SupportError: a setting asks for kills, and this process cannot see the pods' processes.
    """
    wants = _kills_by(config)
    if not (wants and config.enforce) or scope.hierarchy.version == 2 or is_initial():
        return
    if scope.kind == "cgroup" and not is_of_a_pod():
        return
    raise SupportError(
        wants,
        "on cgroup v1 it needs the machine's pid namespace, and this agent runs in one of its own, where it sees no"
        " process of any pod",
        "Set hostPID: true, as deploy/components/host-processes does (chart: agent.hostProcesses)",
    )


def pod_targets(scope: NodeScope, watch: NodeWatch) -> Callable[[int, str], KillTarget | None]:
    """Return a function that finds what is to be killed by a cgroup's id and its pod's UID; None: it is gone."""
    hierarchy = scope.hierarchy

    def locate(cgroup_id: int, pod_uid: str) -> KillTarget | None:
        path = watch.index.path(cgroup_id)
        if path is None:
            return None
        freezer = hierarchy.freezer_mount_point
        names = watch.index.names_to_act_on(pod_uid)
        return KillTarget(hierarchy.mount_point / path, cgroup_id, hierarchy.version, freezer and freezer / path, names)

    return locate


def _kills_by(config: AgentConfig) -> str | None:
    if config.executor == "cgroup":
        return "executor.type cgroup"
    if config.executor == "api" and config.kill_after_s is not None:
        return "executor.killAfter"
    if config.emergency.action == "kill-be":
        return "emergency.action kill-be"
    return "the rung kill of eviction.ladder" if Rung.KILL in config.eviction.ladder.rungs else None
