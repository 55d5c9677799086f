"""Kubelet's PodResources service, which says which CPUs it bound to containers.

Its socket has a folder of its own, so that nothing else of /var/lib/kubelet has to be mounted. h2 comes with the extra
`cri`; it is imported by the first question.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from koordebpf.errors import DecodeError, KubeError
from koordebpf.kube.clients.protobuf import Fields, decode

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
PACKAGE = "v1"
_SERVICE = f"/{PACKAGE}.PodResourcesLister"
_CALL_S = 5.0  # Why: it answers within milliseconds; a kubelet of a node in trouble has no time for it

# Source: k8s.io/kubelet pkg/apis/podresources/v1/api.proto.
MESSAGES: dict[str, Fields] = {
    "ListPodResourcesRequest": {},
    "ContainerResources": {"name": (1, "string"), "cpu_ids": (3, "*int64")},
    "PodResources": {"name": (1, "string"), "namespace": (2, "string"), "containers": (3, "*ContainerResources")},
    "ListPodResourcesResponse": {"pod_resources": (1, "*PodResources")},
    "AllocatableResourcesRequest": {},
    "AllocatableResourcesResponse": {"cpu_ids": (2, "*int64")},
}


class PodCpus(msgspec.Struct, frozen=True):
    """The CPUs that a pod's containers have for themselves."""

    namespace: str
    name: str
    cpus: tuple[int, ...]


class BoundCpus(msgspec.Struct, frozen=True):
    """What kubelet says. `allocatable`: CPUs that it may bind, without those that it reserves; none: policy none."""

    allocatable: tuple[int, ...] = ()
    pods: tuple[PodCpus, ...] = ()


def bound_cpus(socket: Path, timeout_s: float = _CALL_S) -> BoundCpus:
    """Ask kubelet.

    Raises:  KubeError: it cannot be reached, or refuses, or the extra is not installed.
    """
    try:
        from koordebpf.kube.clients.grpc import GrpcSocket
    except ImportError as error:
        raise KubeError(f"{socket}: {error}; install koordebpf with its extra: koordebpf[cri]") from error
    connection = GrpcSocket(socket)

    def ask(method: str, answer: str) -> dict[str, Any]:
        (said,) = connection.call(f"{_SERVICE}/{method}", [b""], timeout_s)
        if not isinstance(said, bytes):
            raise KubeError(f"{socket}: {method}: kubelet says {said}") from said
        try:
            return decode(MESSAGES, answer, said)
        except DecodeError as error:
            raise KubeError(f"{socket}: {method}: kubelet's answer makes no sense: {error}") from error

    try:
        allocatable = ask("GetAllocatableResources", "AllocatableResourcesResponse")["cpu_ids"]
        listed = ask("List", "ListPodResourcesResponse")["pod_resources"]
    finally:
        connection.close()
    pods = [(each, {cpu for one in each["containers"] for cpu in one["cpu_ids"]}) for each in listed]
    return BoundCpus(
        tuple(sorted(allocatable)),
        tuple(PodCpus(each["namespace"], each["name"], tuple(sorted(cpus))) for each, cpus in pods if cpus),
    )
