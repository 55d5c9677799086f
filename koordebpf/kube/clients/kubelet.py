"""What the kubelet is asked: its configuration at /configz, and which CPUs it bound to containers (PodResources).

The socket of PodResources has a folder of its own, so that nothing else of /var/lib/kubelet has to be mounted. h2 comes
with the extra `cri`; it is imported by the first question.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import DecodeError, KubeError
from koordebpf.kube.body import MALFORMED, malformed
from koordebpf.kube.clients.protobuf import Fields, decode

if TYPE_CHECKING:
    from koordebpf.kube.http.transport import Transport

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


class KubeletConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """KubeletConfiguration, spelled as the API spells it; quantities stay as written."""

    cpuManagerPolicy: str = ""
    cpuManagerPolicyOptions: dict[str, str] | None = None
    topologyManagerPolicy: str = ""
    topologyManagerScope: str = ""
    reservedSystemCPUs: str = ""
    kubeReserved: dict[str, str] | None = None
    systemReserved: dict[str, str] | None = None


class _Configz(msgspec.Struct, frozen=True):
    kubeletconfig: KubeletConfig


def decode_configz(body: bytes) -> KubeletConfig:
    """Return what kubelet's /configz answers.

    Raises:  msgspec.DecodeError: it is no such answer.
    """
    return decoder(_Configz).decode(body).kubeletconfig


def kubelet_config(transport: Transport, *, timeout_s: float) -> KubeletConfig:
    """Ask kubelet for the configuration that it runs with.

    Needs:   RBAC get on nodes/configz. Kubelet asks for this right since Kubernetes 1.32 behind its feature gate
             KubeletFineGrainedAuthz, on by default since 1.33; before it takes nodes/proxy alone, which is a right to
             do anything in any container of the node.
    Raises:  KubeError and its kin. KubeDenied: without that right.
    """
    body = transport.get("/configz", verb="get", resource="nodes/configz", timeout_s=timeout_s)
    try:
        return decode_configz(body)
    except MALFORMED as e:
        raise malformed("nodes/configz", "the answer is not kubelet's configuration", e) from e


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
