"""A pod as runtime hooks see it: who it is, its directories, what its annotations and its containers ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kube.cache.objects import Pod
from koordebpf.slo.pods.extended_resources import (
    BATCH_CPU,
    EXTENDED_RESOURCE_ANNOTATION,
    MAX_BYTES,
    MAX_MILLICPU,
    BatchAmounts,
    annotated_amounts,
    batch_amounts,
)
from koordebpf.slo.pods.qos import koord_qos
from koordebpf.slo.strategies.resource_qos import ResourceQOSStrategy
from koordebpf.state.pods.effective import effective
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.pods.requests import NATIVE_CPU, NATIVE_MEMORY, cpu_requests
from koordebpf.state.pods.resources import ContainerKind, Effective, EffectiveContainer

_LIVE = frozenset({"Pending", "Running"})


class PodDirectory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """The directory of a pod's own level, and those of its containers by their id. Paths are below the mount."""

    uid: str
    path: str
    containers: Mapping[str, str] = {}


class ApplicationDirectory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """The directory of a host application, and its class."""

    name: str
    path: str
    qos: str | None = None


class HooksMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What hooks decide from, of one moment; a round without it decides nothing of them.

    `directories`   of the Kubernetes QoS classes, by class; Guaranteed has that of all pods.
    `applications`  of the host that have a directory.
    `online`        CPUs that are online.
    `isolated`      those of them that are in no pool: the kernel keeps them from ordinary tasks.
    `qos`           the effective resourceQOSStrategy; None: there is no NodeSLO.
    `has_bvt`       this kernel has cpu.bvt_warp_ns; `has_idle`: cpu.idle.
    """

    pods: tuple[PodDirectory, ...] = ()
    directories: Mapping[str, str] = {}
    applications: tuple[ApplicationDirectory, ...] = ()
    online: tuple[int, ...] = ()
    isolated: tuple[int, ...] = ()
    qos: ResourceQOSStrategy | None = None
    has_bvt: bool = False
    has_idle: bool = False


class HookContainer(msgspec.Struct, frozen=True, gc=False):
    """One container of a pod. `id` None: the runtime has not made it yet. Amounts of native resources: 0 is no limit.

    `batch` None: it asks for no extended resource. `is_limit_known` False: nothing tells its native limits, which are
    to be left alone.
    """

    name: str
    id: str | None = None
    kind: ContainerKind = "main"
    batch: BatchAmounts | None = None
    cpu_request_millicpu: int = 0
    cpu_limit_millicpu: int = 0
    memory_limit_bytes: int = 0
    is_limit_known: bool = True


class HookPod(msgspec.Struct, frozen=True, gc=False):
    """One pod. `cgroup_parent` is the directory of its own level below the mount, the same in every hierarchy.

    `problems`: sentences on what it asks for and cannot be read; it gets nothing of that. `cpu_request_millicpu` None:
    its spec is not known, as of a pod that only its runtime knows. `cpu_limit_millicpu` is that of its own level, not
    the sum of its containers; 0: it has none there, None: nothing tells it.
    """

    uid: str
    namespace: str
    name: str
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    kube_qos: str = ""
    cgroup_parent: str = ""
    containers: tuple[HookContainer, ...] = ()
    problems: tuple[str, ...] = ()
    cpu_request_millicpu: int | None = None
    cpu_limit_millicpu: int | None = 0

    @property
    def koord_qos(self) -> str:
        """The class that its label names, "" for none."""
        return koord_qos(self.labels)

    @property
    def is_limit_known(self) -> bool:
        """Whether the limits of every container are."""
        return self.cpu_limit_millicpu is not None and all(each.is_limit_known for each in self.containers)

    @property
    def key(self) -> str:
        """`namespace/name`, for people."""
        return f"{self.namespace}/{self.name}"


def hook_pod(pod: Pod, kube_qos: str, cgroup_parent: str = "") -> HookPod:
    """Return a Pod object as hooks see it.

    Extended resources are those of the spec: a tenant may write any into the annotation. Where 64 bits do not hold the
    sum of what it requests, no container requests anything.

    Cost:    20 µs with three containers.
    """
    annotations, problems = pod.metadata.annotations or {}, list[str]()
    its, of = effective(pod), f"pod {pod.key} "
    if its.problem is not None:
        problems.append(f"{its.problem.removeprefix(of)}; what it was resized to and its limits are left alone")
    ids = _container_ids(pod)
    try:
        batch = _spec_amounts(its)
    except ConfigError as error:
        problems.append(f"{error}; extended resources of the pod are left alone")
        batch = {}
    else:
        if not batch and EXTENDED_RESOURCE_ANNOTATION in annotations:
            problems.append(f"annotation {EXTENDED_RESOURCE_ANNOTATION}: no container of the spec has such resources")
    containers: list[HookContainer] = []
    for each in its.every:
        is_known = its.is_limit_of_known(each, NATIVE_CPU) and its.is_limit_of_known(each, NATIVE_MEMORY)
        try:
            native = _native(its, each)
        except ConfigError as error:
            problems.append(f"{str(error).removeprefix(of)}; the container's limits are left alone")
            native, is_known = (0, 0, 0), False
        made = HookContainer(each.name, ids.get(each.name), each.kind, batch.get(each.name), *native, is_known)
        containers.append(made)
    if batch and not (_is_held(its, BATCH_CPU) and _is_held(its, NATIVE_CPU, -3)):
        containers = [_requesting_nothing(each) for each in containers]
    return HookPod(
        uid=pod.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        labels=pod.metadata.labels or {},
        annotations=annotations,
        kube_qos=kube_qos,
        cgroup_parent=cgroup_parent,
        containers=tuple(containers),
        problems=tuple(problems),
        cpu_request_millicpu=_requested_millicpu(its),
        cpu_limit_millicpu=_limited_millicpu(its, problems),
    )


# As pod_facts counts it. What cannot be read is named where it counts.
def _requested_millicpu(its: Effective) -> int:
    try:
        requested = cpu_requests(its)
    except ConfigError:
        return 0
    return max(requested.native_millicpu, requested.batch_millicpu)


# Of the pod's own level, with its overhead; None: nothing tells it.
def _limited_millicpu(its: Effective, problems: list[str]) -> int | None:
    if not its.is_limit_known:
        return None
    try:
        limit = its.limit(NATIVE_CPU) if its.level_limit(NATIVE_CPU) is not None else None
    except ConfigError as error:
        problems.append(f"{str(error).removeprefix(f'pod {its.key} ')}; the pod's limits are left alone")
        return None
    return 0 if limit is None else min(limit.milli_value(), MAX_MILLICPU)


def annotated_pod(pod: HookPod) -> HookPod:
    """Return a pod as a container runtime knows it with the extended resources of its annotation.

    Containers that the annotation names and the pod has not are added: a runtime learns of them one by one.
    """
    try:
        amounts = annotated_amounts(pod.annotations)
    except ConfigError as error:
        sentence = f"{error}; extended resources of the pod are left alone"
        return msgspec.structs.replace(pod, problems=(*pod.problems, sentence))
    named = tuple(msgspec.structs.replace(each, batch=amounts.pop(each.name, None)) for each in pod.containers)
    added = tuple(HookContainer(name, batch=batch) for name, batch in amounts.items())
    return msgspec.structs.replace(pod, containers=named + added)


def _spec_amounts(its: Effective) -> dict[str, BatchAmounts]:
    found: dict[str, BatchAmounts] = {}
    for each in its.every:
        amounts = batch_amounts(each.requests, each.limits, f"containers[{each.name}].resources")
        if amounts is not None:
            found[each.name] = amounts
    return found


def _requesting_nothing(container: HookContainer) -> HookContainer:
    batch = container.batch and msgspec.structs.replace(container.batch, cpu_request_millicpu=0)
    return msgspec.structs.replace(container, cpu_request_millicpu=0, batch=batch)


# Whether 64 bits hold what the pod requests. What cannot be read is named where it counts.
def _is_held(its: Effective, resource: str, scale: int = 0) -> bool:
    try:
        return its.request(resource).is_int64(scale)
    except ConfigError:
        return True


def _native(its: Effective, container: EffectiveContainer) -> tuple[int, int, int]:
    cpu, memory = its.limit_of(container, NATIVE_CPU), its.limit_of(container, NATIVE_MEMORY)
    return (
        min(its.request_of(container, NATIVE_CPU).milli_value(), MAX_MILLICPU),
        min(cpu.milli_value(), MAX_MILLICPU) if cpu is not None else 0,
        min(memory.value(), MAX_BYTES) if memory is not None else 0,
    )


def _container_ids(pod: Pod) -> dict[str, str]:
    status = pod.status
    return {
        each.name: container_id
        for each in (*(status.containerStatuses or ()), *(status.initContainerStatuses or ()))
        if (container_id := each.containerID.partition("://")[2])
    }


class KnownHookPods:
    """Pods as hooks see them, each read once for as long as its object and its directory stay the same."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Pod, HookPod]] = {}

    def of(self, paths: Mapping[str, str], pods: Iterable[PodFacts]) -> tuple[HookPod, ...]:
        """Return those that are pending or running and have a directory; `paths` by UID.

        Cost:    0.5 µs for one that is known, 20 µs for another one.
        """
        found: dict[str, tuple[Pod, HookPod]] = {}
        for facts in pods:
            path = paths.get(facts.uid)
            if path is None or facts.phase not in _LIVE:
                continue
            known = self._known.get(facts.uid)
            if known is None or known[0] is not facts.pod or known[1].cgroup_parent != path:
                known = facts.pod, hook_pod(facts.pod, facts.kube_qos, path)
            found[facts.uid] = known
        self._known = found
        return tuple(each for _, each in found.values())
