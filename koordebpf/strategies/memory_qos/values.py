"""What memory QoS is set by, what an annotation asks for, what is measured, and the pods as it is decided from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kube.cache.objects import Node
from koordebpf.quantity import Quantity, quantity_bytes
from koordebpf.slo.pods.qos import koord_qos_or_default
from koordebpf.slo.strategies.resource_qos import MemoryQOS, ResourceQOSStrategy
from koordebpf.state.pods.effective import effective, nothing_granted
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.pods.hook_pods import PodDirectory
from koordebpf.state.pods.requests import NATIVE_MEMORY
from koordebpf.state.pods.resources import Effective, EffectiveContainer, largest_moment

MEMORY_QOS_ANNOTATION = "koordinator.sh/memoryQOS"  # of a Pod
_MOST_CHARACTERS = 4096  # Why: all fields together take 400
# The part of resourceQOSStrategy that is a pod's, by koordinator.sh/qosClass or what stands for it.
CLASSES: Final = {
    "LSE": "lsrClass",
    "LSR": "lsrClass",
    "LS": "lsClass",
    "BE": "beClass",
    "SYSTEM": "systemClass",
}
_MOST_BYTES = 1 << 53  # Why: 8 PiB, more than any node has; a percentage of it is still a file's value
_LIVE = frozenset({"Pending", "Running"})
GATE = "CgroupReconcile"


class MemoryQosSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of feature gate CgroupReconcile.

    `soft_limits`  on cgroup v1 pods get memory.soft_limit_in_bytes in place of memory.low, which is not there. Why off:
                   a pod without protection is then reclaimed from before any other cgroup, and the kernel calls the
                   file deprecated.
    `most_priority`  a pod's annotation may not ask for more memory.priority (Anolis) than this, or its class has. Why
                   0: the kernel kills pods of lower priority in place of those that asked for more; koordlet takes 12.
    `weaker_annotations`  a pod's annotation may limit it less than its class does, with policy none not at all, and
                   protect more of its batch and mid memory. Why off: the limits of a class are there for other pods;
                   koordlet takes any value.
    """

    soft_limits: bool = False
    most_priority: Annotated[int, msgspec.Meta(ge=0, le=12)] = 0
    weaker_annotations: bool = False


# A pod's annotation koordinator.sh/memoryQOS: a policy, and fields that replace those of its class.
#
# Source: koordinator apis/slo/v1alpha1 PodMemoryQOSConfig, and the annotation's name in pod.go.


class PodMemoryQOS(MemoryQOS, frozen=True, omit_defaults=True):
    """What the annotation says; `enable` has no meaning here.

    `policy` none: the pod has no memory QoS. auto: the recommended values of its class are in place of those of the
    NodeSLO. default, or empty: the NodeSLO's. The other fields then replace single values.
    """

    policy: Literal["none", "auto", "default", ""] = ""


def pod_memory_qos(annotations: Mapping[str, str]) -> PodMemoryQOS | None:
    """Return what the annotation says; None: there is none.

    Raises:  ConfigError: it is not of its form, or a value is out of its range.
    """
    text = annotations.get(MEMORY_QOS_ANNOTATION)
    if not text:
        return None
    path = f"annotation {MEMORY_QOS_ANNOTATION}"
    if len(text) > _MOST_CHARACTERS:
        raise ConfigError(path, f"{text[:80]}…", f"must be at most {_MOST_CHARACTERS} characters")
    try:
        return decoder(PodMemoryQOS).decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(path, text[:80], str(error)) from None


class MemoryContainer(msgspec.Struct, frozen=True, gc=False):
    """One container. `id` None: the runtime has not made it yet. Bytes; a limit of 0 is no limit.

    `is_limit_known` False: nothing tells the limit, and what depends on it is left alone.
    """

    name: str
    id: str | None
    request_bytes: int
    limit_bytes: int
    is_limit_known: bool = True


class MemoryPod(msgspec.Struct, frozen=True, gc=False):
    """One pod; `class_name` is its part of resourceQOSStrategy.

    `request_bytes`  of the whole pod, as far as it is granted, at least what its containers request together; of the
                     memory that its band of priority asks for: native, batch or mid.
    `limit_bytes`    of its own level or of its containers together, with its overhead; 0: one of them has none.
    `is_level_known` False: nothing tells the limit of its own level.
    `is_overcommitted`  what it requests, others have requested and do not use: batch and mid memory.
    `problems`       sentences on what of it cannot be read.
    """

    uid: str
    key: str
    class_name: str
    kube_qos: str
    request_bytes: int
    limit_bytes: int
    containers: tuple[MemoryContainer, ...]
    own: PodMemoryQOS | None = None
    problems: tuple[str, ...] = ()
    is_overcommitted: bool = False
    is_level_known: bool = True

    @property
    def is_limit_known(self) -> bool:
        """Whether that of its own level and of every container is."""
        return self.is_level_known and all(each.is_limit_known for each in self.containers)


def memory_pod(facts: PodFacts) -> MemoryPod:
    """Return a pod as memory QoS sees it. One of which a quantity cannot be read requests nothing.

    Where 8 PiB do not hold the sum of what it requests, its containers request nothing, and the pod what is left.

    Cost:    15 µs with three containers.
    """
    problems: list[str] = []
    terms, status, its = facts.terms, facts.pod.status, effective(facts.pod)
    resource, of = terms.memory_resource, f"pod {facts.pod.key} "
    if its.problem is not None:
        problems.append(f"{its.problem.removeprefix(of)}; it requests nothing")
    ids = {
        each.name: found
        for each in (*(status.containerStatuses or ()), *(status.initContainerStatuses or ()))
        if (found := each.containerID.partition("://")[2])
    }
    try:
        own = pod_memory_qos(terms.annotations)
    except ConfigError as error:
        problems.append(f"{error}; the pod has what its class has")
        own = None
    try:
        amounts = [_amounts(its, each, resource) for each in its.every]
        requested, limit = its.request(resource), its.limit(resource)
        request_bytes = min(requested.value(), _MOST_BYTES)
        limit_bytes = 0 if limit is None else min(limit.value(), _MOST_BYTES)
        together = _together(its, amounts)
        if not requested.is_int64() or together > _MOST_BYTES:
            amounts, together = [(0, limit) for _, limit in amounts], 0
    except ConfigError as error:
        problems.append(f"{str(error).removeprefix(of)}; it requests nothing")
        its = nothing_granted(its)
        amounts, together, request_bytes, limit_bytes = [(0, 0)] * len(its.every), 0, 0, 0
    containers = (
        MemoryContainer(each.name, ids.get(each.name), *amount, its.is_limit_of_known(each, resource))
        for each, amount in zip(its.every, amounts, strict=True)
    )
    return MemoryPod(
        uid=facts.uid,
        key=f"{facts.namespace}/{facts.name}",
        class_name=CLASSES.get(koord_qos_or_default(terms.labels, facts.kube_qos), "lsClass"),
        kube_qos=facts.kube_qos,
        # No container is to be protected more than its pod, an init container beside sidecars neither.
        request_bytes=max(request_bytes, together),
        limit_bytes=limit_bytes,
        containers=tuple(containers),
        own=own,
        problems=tuple(problems),
        is_overcommitted=resource != NATIVE_MEMORY,
        is_level_known=its.is_limit_known or resource != NATIVE_MEMORY,
    )


# What containers request at the moment when they request most.
def _together(its: Effective, amounts: Sequence[tuple[int, int]]) -> int:
    moments = [(Quantity(request), each.kind) for each, (request, _) in zip(its.every, amounts, strict=True)]
    return int(largest_moment(moments).unscaled)


# Request and limit.
def _amounts(its: Effective, container: EffectiveContainer, resource: str) -> tuple[int, int]:
    request, limit = its.request_of(container, resource), its.limit_of(container, resource)
    return min(request.value(), _MOST_BYTES), 0 if limit is None else min(limit.value(), _MOST_BYTES)


class Protection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """memory.min and memory.low of one directory, in bytes; None: all of its memory (max)."""

    path: str
    min_bytes: int | None = 0
    low_bytes: int | None = 0


class MemoryQosMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What memory QoS decides from, of one moment; a round without it decides nothing of it.

    `pods`         with their directories, below the mount of the memory controller.
    `directories`  of the Kubernetes QoS classes, by class; Guaranteed has that of all pods.
    `above`        the directories above that of all pods, the highest first.
    `files`        that a pod's directory has, by the names of cgroup v1.
    `qos`          resourceQOSStrategy in force; None: there is no NodeSLO.
    """

    pods: tuple[PodDirectory, ...] = ()
    directories: Mapping[str, str] = {}
    above: tuple[Protection, ...] = ()
    files: tuple[str, ...] = ()
    qos: ResourceQOSStrategy | None = None


class MemoryQosView(msgspec.Struct, frozen=True):
    """The node for memory QoS. `pods` are those that are pending or running and have a directory.

    `allocatable_bytes`  memory of the Node; None: not known.
    """

    measured: MemoryQosMeasured
    pods: tuple[MemoryPod, ...]
    allocatable_bytes: int | None = None


class KnownMemoryPods:
    """Pods as memory QoS sees them, each read once for as long as its object stays the same."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[PodFacts, MemoryPod]] = {}

    def of(self, measured: MemoryQosMeasured, pods: Iterable[PodFacts]) -> tuple[MemoryPod, ...]:
        """Return those that are pending or running and have a directory.

        Cost:    0.5 µs for one that is known, 15 µs for another one.
        """
        placed = {each.uid for each in measured.pods}
        found: dict[str, tuple[PodFacts, MemoryPod]] = {}
        for facts in pods:
            if facts.uid not in placed or facts.phase not in _LIVE:
                continue
            known = self._known.get(facts.uid)
            if known is None or known[0].pod is not facts.pod:
                known = facts, memory_pod(facts)
            found[facts.uid] = known
        self._known = found
        return tuple(each for _, each in found.values())


_PODS = KnownMemoryPods()


def memory_qos_view(measured: MemoryQosMeasured, pods: Iterable[PodFacts], node: Node | None) -> MemoryQosView:
    """Return the node as memory QoS sees it. The same arguments give an equal view.

    Raises:  ConfigError: the Node's allocatable memory is no quantity.
    """
    written = ((node.status.allocatable if node is not None else None) or {}).get(NATIVE_MEMORY)
    allocatable = quantity_bytes(written, f"node.status.allocatable.{NATIVE_MEMORY}") if written is not None else None
    return MemoryQosView(measured, _PODS.of(measured, pods), allocatable)


class MemoryQosRules(msgspec.Struct, frozen=True):
    """What is decided by, beside the pod.

    `qos`                resourceQOSStrategy of the NodeSLO in force; None: there is no NodeSLO.
    `files`              that a pod's directory has on this kernel.
    `allocatable_bytes`  memory of the Node; None: not known.
    `soft_limits`, `most_priority`, `weaker_annotations`  as MemoryQosSettings has them.
    """

    qos: ResourceQOSStrategy | None = None
    files: frozenset[CgroupFile] = frozenset()
    allocatable_bytes: int | None = None
    soft_limits: bool = False
    most_priority: int = 0
    weaker_annotations: bool = False


class PodQos(msgspec.Struct, frozen=True):
    """The fields that a pod has; one that is None leaves its files alone. `sources` says where each field is from."""

    fields: MemoryQOS = MemoryQOS()
    sources: Mapping[str, str] = {}
    problems: tuple[str, ...] = ()

    def source(self, field: str) -> str:
        """Return where a field is from, in words."""
        return self.sources.get(field, "")


NO_QOS = PodQos()
