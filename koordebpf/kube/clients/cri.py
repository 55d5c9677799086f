"""The container runtime's own socket: the few calls of CRI v1 that stopping a pod's containers takes.

h2 comes with the extra `cri`; it is imported only when this is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from koordebpf.errors import ConfigError, DecodeError, KubeError, KubeGone, SupportError
from koordebpf.kube.clients.protobuf import Fields, decode, encode

if TYPE_CHECKING:
    from koordebpf.kube.clients.grpc import GrpcError

# Where the runtimes listen, first found first taken.
SOCKETS = (
    Path("/run/containerd/containerd.sock"),
    Path("/run/crio/crio.sock"),
    Path("/run/k3s/containerd/containerd.sock"),
)

_POD_UID = "io.kubernetes.pod.uid"  # labels that the kubelet gives to containers
_CONTAINER_NAME = "io.kubernetes.container.name"
_RUNNING, _EXITED = 1, 2  # ContainerState.CONTAINER_RUNNING, CONTAINER_EXITED
PACKAGE = "runtime.v1"
_SERVICE = f"/{PACKAGE}.RuntimeService"

# Only what is read or sent. Source: k8s.io/cri-api pkg/apis/runtime/v1/api.proto.
MESSAGES: dict[str, Fields] = {
    "Label": {"key": (1, "string"), "value": (2, "string")},
    "VersionRequest": {"version": (1, "string")},
    "VersionResponse": {"runtime_name": (2, "string"), "runtime_version": (3, "string")},
    "ContainerFilter": {"label_selector": (4, "*Label")},
    "ListContainersRequest": {"filter": (1, "ContainerFilter")},
    "Container": {"id": (1, "string"), "state": (6, "int32"), "labels": (8, "*Label")},
    "ListContainersResponse": {"containers": (1, "*Container")},
    "StopContainerRequest": {"container_id": (1, "string"), "timeout": (2, "int64")},
    "StopContainerResponse": {},
}


class RunningContainer(msgspec.Struct, frozen=True):
    """A container that runs now, an init or sidecar container as well."""

    id: str
    name: str  # as in the pod's spec


class PodContainers(msgspec.Struct, frozen=True):
    """The containers of one pod that a runtime knows: those that run, and the ids of all and of those that ended.

    A container that was only created, or whose state the runtime does not know, is neither.
    """

    running: tuple[RunningContainer, ...]
    ids: frozenset[str]
    ended: frozenset[str] = frozenset()


class StopResult(msgspec.Struct, frozen=True):
    """What became of one container; `problem` None: it is stopped."""

    container: RunningContainer
    problem: str | None


class Cri:
    """One connection to a container runtime. Calls may come from any thread.

    Args:
        socket: the runtime's Unix socket; None: the first of `SOCKETS` that is there.
    Raises:  ConfigError: there is no such socket. SupportError: the extra is not installed.
    """

    def __init__(self, socket: Path | None = None) -> None:
        path = socket or next((each for each in SOCKETS if each.is_socket()), None)
        if path is None:
            raise ConfigError(
                "--cri-socket", None, f"no runtime listens at {', '.join(map(str, SOCKETS))}; name its socket"
            )
        if not path.is_socket():
            raise ConfigError("--cri-socket", str(path), "must be the socket of a container runtime")
        try:
            from koordebpf.kube.clients.grpc import GrpcSocket
        except ImportError as error:
            raise SupportError(
                "executor cri", str(error), "Install koordebpf with its extra: koordebpf[cri]."
            ) from error
        self._socket = GrpcSocket(path)

    def version(self, timeout_s: float = 5.0) -> str:
        """Return the runtime's name and version. Raises: KubeError."""
        answer = self._ask("Version", {"version": "v1"}, timeout_s)
        return f"{answer['runtime_name']} {answer['runtime_version']}"

    def warm(self, timeout_s: float) -> None:
        """Connect, where there is no connection; what is there already costs one call.

        Raises:  KubeError: the runtime does not answer.
        """
        self.version(timeout_s)

    def containers(self, pod_uid: str, timeout_s: float) -> PodContainers:
        """Return every container of the pod. Raises: KubeError."""
        wanted = {"label_selector": [{"key": _POD_UID, "value": pod_uid}]}
        running, ids, ended = [], set(), set()
        for each in self._ask("ListContainers", {"filter": wanted}, timeout_s)["containers"]:
            labels = {label["key"]: label["value"] for label in each["labels"]}
            # A runtime that does not know a filter must not make other pods' containers ours.
            if labels.get(_POD_UID) != pod_uid:
                continue
            ids.add(each["id"])
            if each["state"] == _RUNNING:
                running.append(RunningContainer(each["id"], labels.get(_CONTAINER_NAME, each["id"])))
            if each["state"] == _EXITED:
                ended.add(each["id"])
        return PodContainers(tuple(running), frozenset(ids), frozenset(ended))

    def stop(self, containers: Sequence[RunningContainer], *, grace_s: int, timeout_s: float) -> tuple[StopResult, ...]:
        """Stop them side by side and wait for all; one that is gone counts as stopped.

        Args:
            containers: of one pod.
            grace_s: between SIGTERM and SIGKILL; 0: SIGKILL at once.
            timeout_s: how long the runtime may take beyond the grace.
        """
        method = "StopContainer"
        requests = [{"container_id": each.id, "timeout": grace_s} for each in containers]
        results = []
        for container, answer in zip(containers, self._call(method, requests, grace_s + timeout_s), strict=True):
            failed = None if isinstance(answer, bytes) else _error(method, answer)
            is_stopped = failed is None or isinstance(failed, KubeGone)
            results.append(StopResult(container, None if is_stopped else str(failed)))
        return tuple(results)

    def close(self) -> None:
        """Cut every call short; twice is harmless."""
        self._socket.close()

    def _ask(self, method: str, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        (answer,) = self._call(method, [request], timeout_s)
        if not isinstance(answer, bytes):
            raise _error(method, answer)
        try:
            return decode(MESSAGES, f"{method}Response", answer)
        except DecodeError as error:
            raise KubeError(f"{method}: the container runtime's answer makes no sense: {error}") from error

    def _call(self, method: str, requests: Sequence[Mapping[str, Any]], timeout_s: float) -> list[bytes | GrpcError]:
        encoded = [encode(MESSAGES, f"{method}Request", each) for each in requests]
        return self._socket.call(f"{_SERVICE}/{method}", encoded, timeout_s)


def _error(method: str, error: GrpcError) -> KubeError:
    sentence = f"{method}: the container runtime says {error}"
    return KubeGone(sentence, 404) if error.code == "NOT_FOUND" else KubeError(sentence, retry=error.retry)
