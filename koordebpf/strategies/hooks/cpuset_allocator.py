"""CPUSetAllocator: on which CPUs containers run, and which pods have no quota for it.

Source: koordinator pkg/koordlet/runtimehooks/hooks/cpuset, same order of decision.
"""

from __future__ import annotations

from collections.abc import Iterable

from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.files import format_cpu_list
from koordebpf.slo.pods.cpu_placement import RESOURCE_STATUS_ANNOTATION, SYSTEM_QOS_ANNOTATION, SharePool, too_many_cpus
from koordebpf.slo.pods.resource_status import (
    BE_SHARED_POOLS_ANNOTATION,
    SHARED_POOLS_ANNOTATION,
    ResourceStatus,
    resource_status,
)
from koordebpf.state.pods.hook_pods import HookPod
from koordebpf.strategies.hooks.values import CPUSET_ALLOCATOR, UNLIMITED, HookRules, Setting

_CPUSET = f"{RESOURCE_STATUS_ANNOTATION} cpuset"
_NUMA = f"{RESOURCE_STATUS_ANNOTATION} numaNodeResources"

CpuSetting = Setting[frozenset[int]]


def status_of(pod: HookPod, problems: list[str]) -> ResourceStatus | None:
    """Return what the scheduler bound a pod to; what cannot be read is a problem, and binds it to nothing."""
    if RESOURCE_STATUS_ANNOTATION not in pod.annotations:
        return None
    try:
        status = resource_status(pod.annotations)
    except ConfigError as error:
        problems.append(str(error))
        return None
    request_millicpu = pod.cpu_request_millicpu
    if status is None or request_millicpu is None:
        return status
    if (problem := too_many_cpus(status.cpus, request_millicpu)) is not None:
        problems.append(problem)
        return ResourceStatus()  # as if the scheduler had chosen nothing
    return status


def unset_quota(status: ResourceStatus | None, rules: HookRules) -> Setting[int] | None:
    """Return that a pod or container has no quota; None: it keeps its own.

    One with CPUs of its own is limited by these: a quota as well would throttle it.
    """
    if status is None or not status.cpus or not rules.unsets_quota:
        return None
    return Setting(UNLIMITED, CPUSET_ALLOCATOR, _CPUSET)


def container_cpus(
    pod: HookPod, status: ResourceStatus | None, rules: HookRules, problems: list[str]
) -> CpuSetting | None:
    """Return the CPUs that the containers of a pod get; None: they are left alone. Empty: none of their own.

    The CPUs that the scheduler chose; the share pools of its NUMA nodes; those of the system QoS class; for LS all
    share pools; none for a pod in the best-effort directory, which suppression places; for the rest all share pools,
    unless kubelet's static policy places them.
    """
    if status is not None and status.cpus:
        return _there(frozenset(status.cpus), _CPUSET, rules, problems)
    if RESOURCE_STATUS_ANNOTATION in pod.annotations and status is None:
        return None  # it cannot be read: what it means is not known
    if rules.shared_pools is None:
        return None
    qos, is_best_effort = pod.koord_qos, pod.kube_qos == "BestEffort"
    if status is not None and status.numa_nodes:
        return _of_nodes(qos, status.numa_nodes, rules, problems)
    if qos == "SYSTEM" and rules.system_cpus:
        return _there(rules.system_cpus, SYSTEM_QOS_ANNOTATION, rules, problems)
    if qos == "LS":
        return _pooled(rules.shared_pools, SHARED_POOLS_ANNOTATION, rules, problems)
    if is_best_effort:
        return CpuSetting(frozenset(), CPUSET_ALLOCATOR, "in the best-effort directory")
    if rules.kubelet_policy == "static":
        return None
    return _pooled(rules.shared_pools, SHARED_POOLS_ANNOTATION, rules, problems)


def application_cpus(qos: str | None, rules: HookRules, problems: list[str]) -> CpuSetting | None:
    """Return the CPUs of a host application: all share pools for LS, none else."""
    if qos != "LS" or rules.shared_pools is None:
        return None
    return _pooled(rules.shared_pools, SHARED_POOLS_ANNOTATION, rules, problems)


def _of_nodes(qos: str, nodes: Iterable[int], rules: HookRules, problems: list[str]) -> CpuSetting | None:
    if qos == "BE":
        if not rules.places_best_effort or rules.be_pools is None:
            return CpuSetting(frozenset(), CPUSET_ALLOCATOR, "in the best-effort directory")
        pools, name = rules.be_pools, BE_SHARED_POOLS_ANNOTATION
    else:
        pools, name = rules.shared_pools or (), SHARED_POOLS_ANNOTATION
    wanted = set(nodes)
    if unknown := wanted - {each.numa_node for each in pools}:
        problems.append(f"annotation {_NUMA}: {name} has no NUMA node {min(unknown)}")
    return _pooled([each for each in pools if each.numa_node in wanted], _NUMA, rules, problems)


def _pooled(pools: Iterable[SharePool], source: str, rules: HookRules, problems: list[str]) -> CpuSetting | None:
    return _there(frozenset(cpu for each in pools for cpu in each.cpus), source, rules, problems)


# CPUs that are not online would be refused, the whole list of them on v1.
def _there(cpus: frozenset[int], source: str, rules: HookRules, problems: list[str]) -> CpuSetting | None:
    found = cpus if rules.online is None else cpus & rules.online
    if missing := cpus - found:
        problems.append(f"annotation {source}: CPU {format_cpu_list(missing)[:40]} is not online")
    return CpuSetting(found, CPUSET_ALLOCATOR, source) if found else None
