"""Kubelet's PodResources service, which says which CPUs it bound to containers.

Its socket has a folder of its own, so that nothing else of /var/lib/kubelet has to be mounted. grpcio takes 24 MB: it
is imported by a child that asks once and ends, `python -m koordebpf.kube.pod_resources SOCKET`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from koordebpf.errors import KubeError
from koordebpf.kube.protobuf import Fields, message_classes

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
_PACKAGE = "v1"
_SERVICE = f"/{_PACKAGE}.PodResourcesLister"
_CALL_S = 5.0  # Why: it answers within milliseconds; a kubelet of a node in trouble has no time for it
_CHILD_S = 15.0  # Why: the call, and an interpreter that starts on a busy node
_MOST_BYTES = 16 << 20  # of the answer. Why: 110 pods are 20 KB
_NICE = 10  # the agent's own priority is not for this
_PACKAGES = Path(__file__).parents[2]

# Source: k8s.io/kubelet pkg/apis/podresources/v1/api.proto.
_MESSAGES: dict[str, Fields] = {
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
    """Ask kubelet, in this process.

    Raises:  KubeError: it cannot be reached, or refuses.
    """
    import grpc

    messages = classes()
    channel = grpc.insecure_channel(
        f"unix:{socket}",
        options=[("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", _MOST_BYTES)],
    )

    def ask(method: str, request: str, answer: str) -> Any:
        call = channel.unary_unary(
            f"{_SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=messages[answer].FromString,
        )
        try:
            return call(messages[request](), timeout=timeout_s)
        except grpc.RpcError as error:
            raise KubeError(f"{method}: kubelet says {error.code().name}: {error.details()}") from error

    try:
        allocatable = ask("GetAllocatableResources", "AllocatableResourcesRequest", "AllocatableResourcesResponse")
        listed = ask("List", "ListPodResourcesRequest", "ListPodResourcesResponse")
    finally:
        channel.close()
    pods = (
        PodCpus(each.namespace, each.name, tuple(sorted({cpu for one in each.containers for cpu in one.cpu_ids})))
        for each in listed.pod_resources
    )
    return BoundCpus(tuple(sorted(allocatable.cpu_ids)), tuple(each for each in pods if each.cpus))


def bound_cpus_by_child(socket: Path, timeout_s: float = _CHILD_S) -> BoundCpus:
    """Ask kubelet in a child, which is gone afterwards.

    Raises:  KubeError: the child could not ask, its last line says why, or it took too long.
    Cost:    0.12 s of a CPU, and 50 MiB for as long.
    """
    path = os.pathsep.join(filter(None, (str(_PACKAGES), os.environ.get("PYTHONPATH"))))
    # -P: nothing is imported from where the agent was started.
    command = [sys.executable, "-P", "-m", "koordebpf.kube.pod_resources", str(socket)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
        )
        if done.returncode == 0:
            return msgspec.json.decode(done.stdout, type=BoundCpus)
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        raise KubeError(f"{socket}: {error}") from error
    *_, last = [f"exit code {done.returncode}", *done.stderr.decode(errors="replace").splitlines()]
    raise KubeError(f"{socket}: {last}")


def classes() -> dict[str, Any]:
    """Return the messages of the service."""
    return message_classes(_PACKAGE, _MESSAGES)


def main() -> None:
    """Print what kubelet says, as JSON."""
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    try:
        said = bound_cpus(Path(sys.argv[1]))
    except ImportError as error:
        sys.exit(f"{error}; install koordebpf with its extra: koordebpf[cri]")
    except KubeError as error:
        sys.exit(str(error))
    sys.stdout.buffer.write(msgspec.json.encode(said))


if __name__ == "__main__":
    main()
