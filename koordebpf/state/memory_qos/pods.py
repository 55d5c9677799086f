"""A pod as memory QoS sees it: its class, what its annotation asks for, and what its containers request."""

from __future__ import annotations

from typing import Final

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kube.cache.objects import Container
from koordebpf.quantity import quantity_bytes
from koordebpf.slo.pods.memory_qos import PodMemoryQOS, pod_memory_qos
from koordebpf.slo.pods.qos import koord_qos_or_default
from koordebpf.state.pods.effective import RESIZABLE, EffectiveContainers, granted, nothing_granted
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.pods.requests import NATIVE_MEMORY, scheduled_request

# The part of resourceQOSStrategy that is a pod's, by koordinator.sh/qosClass or what stands for it.
CLASSES: Final = {
    "LSE": "lsrClass",
    "LSR": "lsrClass",
    "LS": "lsClass",
    "BE": "beClass",
    "SYSTEM": "systemClass",
}
_MOST_BYTES = 1 << 53  # Why: 8 PiB, more than any node has; a percentage of it is still a file's value


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
    `limit_bytes`    of its containers together; 0: one of them has none.
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

    @property
    def is_limit_known(self) -> bool:
        """Whether that of every container is."""
        return all(each.is_limit_known for each in self.containers)


def memory_pod(facts: PodFacts) -> MemoryPod:
    """Return a pod as memory QoS sees it. One of which a quantity cannot be read requests nothing.

    Where 64 bits do not hold the sum of what it requests, its containers request nothing, and the pod what is left.

    Cost:    15 µs with three containers.
    """
    problems: list[str] = []
    terms, spec, status = facts.terms, facts.pod.spec, facts.pod.status
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
        its = granted(facts.pod)
        amounts = [_amounts(each, terms.memory_resource) for each in its.every]
        requested = scheduled_request(facts.pod, its, terms.memory_resource)
        request_bytes = min(requested.value(), _MOST_BYTES)
        if not requested.is_int64():
            amounts = [(0, limit) for _, limit in amounts]
    except ConfigError as error:
        problems.append(f"{error}; it requests nothing")
        its = nothing_granted(facts.pod)
        amounts, request_bytes = [(0, 0)] * len(its.every), 0
    every = its.every
    is_init = [at >= len(spec.containers) and each.restartPolicy != "Always" for at, each in enumerate(every)]
    lasting = [amount for amount, ends in zip(amounts, is_init, strict=True) if not ends]
    at_start = [request for (request, _), ends in zip(amounts, is_init, strict=True) if ends]
    sidecars = sum(request for request, _ in lasting[len(spec.containers) :])
    containers = (
        MemoryContainer(each.name, ids.get(each.name), *amount, _is_known(each, its, terms.memory_resource))
        for each, amount in zip(every, amounts, strict=True)
    )
    return MemoryPod(
        uid=facts.uid,
        key=f"{facts.namespace}/{facts.name}",
        class_name=CLASSES.get(koord_qos_or_default(terms.labels, facts.kube_qos), "lsClass"),
        kube_qos=facts.kube_qos,
        # No container is to be protected more than its pod, an init container beside sidecars neither.
        request_bytes=min(
            max(request_bytes, sum(each for each, _ in lasting), *(sidecars + each for each in at_start)), _MOST_BYTES
        ),
        limit_bytes=sum(each for _, each in lasting) if all(each for _, each in lasting) else 0,
        containers=tuple(containers),
        own=own,
        problems=tuple(problems),
        is_overcommitted=terms.memory_resource != NATIVE_MEMORY,
    )


# No resize changes a limit on extended memory.
def _is_known(container: Container, its: EffectiveContainers, resource: str) -> bool:
    return resource not in RESIZABLE or container.name not in its.unknown


# Request and limit. The API server writes a limit without a request as both; a Pod from a file has not been there.
def _amounts(container: Container, resource: str) -> tuple[int, int]:
    requests = (container.resources.requests if container.resources else None) or {}
    limits = (container.resources.limits if container.resources else None) or {}
    path = f"containers[{container.name}].resources"
    limit = min(quantity_bytes(limits.get(resource, 0), f"{path}.limits.{resource}"), _MOST_BYTES)
    request = quantity_bytes(requests.get(resource, limit), f"{path}.requests.{resource}")
    return min(request, _MOST_BYTES), limit
