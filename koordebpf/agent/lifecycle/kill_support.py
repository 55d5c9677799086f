"""What an agent that stops pods by itself needs: to see the processes, and to know each pod's cgroup and containers."""

from __future__ import annotations

from collections.abc import Callable

from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.owner import OwnerKind
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import NodeScope
from koordebpf.configuration.settings import AgentConfig, named_executors
from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.cgroup.kill import KillTarget
from koordebpf.kernel.cgroup.lifted import CpuPlace
from koordebpf.kernel.cgroup.pod_directory import bears
from koordebpf.kernel.host.machine import is_initial, is_of_a_pod
from koordebpf.kube.clients.cri import RunningContainer
from koordebpf.policy.ladder_settings import Rung


def check_kill_support(config: AgentConfig, scope: NodeScope) -> None:
    """Refuse to start where a kill finds no process: cgroup v1 lists those of one's own pid namespace only.

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


def pod_targets(scope: NodeScope, watch: NodeWatch, *, lifts: bool = False) -> Callable[[int, str], KillTarget | None]:
    """Return a function that finds what is to be killed by a cgroup's id and its pod's UID; None: it is gone.

    `lifts`: with the place of its CPU limits, which are lifted then.
    """
    hierarchy = scope.hierarchy
    cpu = find_controllers().get("cpu") if lifts else None

    def locate(cgroup_id: int, pod_uid: str) -> KillTarget | None:
        path = watch.index.path(cgroup_id)
        if path is None:
            return None
        freezer = hierarchy.freezer_mount_point
        names = watch.index.names_to_act_on(pod_uid)
        at, place = hierarchy.mount_point / path, None
        if cpu is not None and names:  # on v1 a name alone says whose directory it is
            same_id = cgroup_id if cpu.mount_point == hierarchy.mount_point else None
            place = CpuPlace(cpu.mount_point / path, 2 if cpu.version == 2 else 1, same_id, names)
        return KillTarget(at, cgroup_id, hierarchy.version, freezer and freezer / path, names, place)

    return locate


def known_containers(index: CgroupIndex, pod_uid: str) -> tuple[RunningContainer, ...]:
    """Return every container of a pod, without asking the runtime; none where one of them is not known yet.

    A container is known where its status names it and the pod's own directory has a cgroup of its id: a status alone
    may be old, or written by a process that may write it, and would lead to another pod's container.

    Cost:    5 µs, 40 µs after a change of the pods.
    """
    cgroup_id = index.pod_cgroup(pod_uid)
    path = index.path(cgroup_id) if cgroup_id is not None else None
    if cgroup_id is None or path is None or not bears(path.rpartition("/")[2], index.names_to_act_on(pod_uid)):
        return ()
    found = []
    for owner in filter(None, map(index.owner, index.children(cgroup_id))):
        if owner.kind is not OwnerKind.CONTAINER:
            continue
        if owner.container_id is None or owner.container_name is None:
            return ()
        found.append(RunningContainer(owner.container_id, owner.container_name))
    return tuple(found)


def _kills_by(config: AgentConfig) -> str | None:
    if config.executor == "cgroup":
        return "executor.type cgroup"
    if config.executor == "api" and config.kill_after_s is not None:
        return "executor.killAfter"
    if config.emergency.action == "kill-be":
        return "emergency.action kill-be"
    for each in named_executors(config):
        if each.executor == "cgroup":
            return f"{each.place} {each.value}"
    return "the rung kill of eviction.ladder" if Rung.KILL in config.eviction.ladder.rungs else None
