"""Annotation resource-status of a pod and the share pools of its node: which CPUs the scheduler means.

Source: koordinator apis/extension/numa_aware.go, ResourceStatus, CPUSharedPool; resource.go, SystemQOSResource.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koordebpf.errors import ConfigError, KernelFileError
from koordebpf.kernel.cgroup.files import parse_cpu_list
from koordebpf.slo.pods.cpu_placement import (
    MANAGER_POLICY_ANNOTATION,
    RESOURCE_STATUS_ANNOTATION,
    SYSTEM_QOS_ANNOTATION,
    Annotations,
    SharePool,
    read_annotation,
)
from koordebpf.slo.pods.extended_resources import BATCH_CPU

SHARED_POOLS_ANNOTATION = "node.koordinator.sh/cpu-shared-pools"  # of NodeResourceTopology
BE_SHARED_POOLS_ANNOTATION = "node.koordinator.sh/be-cpu-shared-pools"
_CPU = frozenset({"cpu", BATCH_CPU})


class ResourceStatus(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """What the scheduler bound a pod to: CPUs, or the share pools of NUMA nodes on which it has CPU."""

    cpus: tuple[int, ...] = ()
    numa_nodes: tuple[int, ...] = ()


class NodePools(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What NodeResourceTopology says of the node's CPUs.

    `shared` and `best_effort` None: it says nothing of pools, as on a node without the report. `system`: CPUs of the
    system QoS class, whether it has them for itself or not.
    """

    shared: tuple[SharePool, ...] | None = None
    best_effort: tuple[SharePool, ...] | None = None
    system: tuple[int, ...] = ()
    kubelet_policy: str = ""
    problems: tuple[str, ...] = ()


class _NumaResources(msgspec.Struct):
    node: int = 0
    resources: dict[str, Any] | None = None


class _Status(msgspec.Struct):
    cpuset: str = ""
    numaNodeResources: list[_NumaResources] | None = None


class _Pool(msgspec.Struct):
    socket: int = 0
    node: int = 0
    cpuset: str = ""


class _System(msgspec.Struct):
    cpuset: str = ""


class _Policy(msgspec.Struct):
    policy: str = ""


def resource_status(annotations: Annotations) -> ResourceStatus | None:
    """Return what the scheduler bound a pod to; None: to nothing.

    Raises:  ConfigError: the annotation is not of its form.
    """
    written = read_annotation(annotations, RESOURCE_STATUS_ANNOTATION, _Status)
    if written is None:
        return None
    cpus = _cpus(written.cpuset, RESOURCE_STATUS_ANNOTATION)
    # A NUMA node with memory alone places no CPU.
    nodes = (each.node for each in written.numaNodeResources or () if _CPU & (each.resources or {}).keys())
    return ResourceStatus(cpus, tuple(dict.fromkeys(nodes)))


def node_pools(annotations: Annotations) -> NodePools:
    """Return what the annotations of NodeResourceTopology say; one that cannot be read says nothing."""
    problems: list[str] = []

    def read(name: str) -> Any:
        try:
            return _OF_POOLS[name](annotations, name)
        except ConfigError as error:
            problems.append(str(error))
            return None

    return NodePools(
        shared=read(SHARED_POOLS_ANNOTATION),
        best_effort=read(BE_SHARED_POOLS_ANNOTATION),
        system=read(SYSTEM_QOS_ANNOTATION) or (),
        kubelet_policy=read(MANAGER_POLICY_ANNOTATION) or "",
        problems=tuple(problems),
    )


def with_last_good(annotations: Annotations, last: Annotations) -> tuple[Annotations, tuple[str, ...]]:
    """Return the annotations of NodeResourceTopology, and what is wrong with those that `node_pools` reads.

    One that cannot be read is as in `last`, where it can be read there; without it pods would lose their CPUs.
    """
    kept: dict[str, str] = {}
    problems = []
    for name, read in _OF_POOLS.items():
        try:
            read(annotations, name)
        except ConfigError as error:
            try:
                is_good = read(last, name) is not None
            except ConfigError:
                is_good = False
            if last is not None and is_good:
                kept[name] = last[name]
                problems.append(f"{error}; the last good one stays in force")
    return ({**(annotations or {}), **kept} if kept else annotations), tuple(problems)


def _pools(annotations: Annotations, name: str) -> tuple[SharePool, ...] | None:
    written = _read(annotations, name, list[_Pool])
    if written is None:
        return None
    return tuple(SharePool(each.socket, each.node, _cpus(each.cpuset, name)) for each in written)


def _system(annotations: Annotations, name: str) -> tuple[int, ...] | None:
    written = _read(annotations, name, _System)
    return None if written is None else _cpus(written.cpuset, name)


def _policy(annotations: Annotations, name: str) -> str | None:
    written = _read(annotations, name, _Policy)
    return None if written is None else str(written.policy)


def _read(annotations: Annotations, name: str, kind: Any) -> Any:
    return read_annotation(annotations, name, kind | None)  # Go writes a nil slice or pointer as null


# What `node_pools` reads. Each raises ConfigError, and returns None where the annotation is absent.
_OF_POOLS: Mapping[str, Callable[[Annotations, str], Any]] = {
    SYSTEM_QOS_ANNOTATION: _system,
    MANAGER_POLICY_ANNOTATION: _policy,
    SHARED_POOLS_ANNOTATION: _pools,
    BE_SHARED_POOLS_ANNOTATION: _pools,
}


def _cpus(text: str, name: str) -> tuple[int, ...]:
    try:
        return tuple(sorted(parse_cpu_list(text, name)))
    except KernelFileError:
        raise ConfigError(f"annotation {name} cpuset", text[:80], "must be a list of CPUs such as 0-3,8") from None
