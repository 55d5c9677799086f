"""The container runtime's own socket: the few calls of CRI v1 that stopping a pod's containers takes.

grpcio and protobuf come with the extra `cri`; they are imported only here and only when this is opened.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from koordebpf.errors import ConfigError, KubeError, KubeGone, SupportError
from koordebpf.kube.protobuf import message_classes

if TYPE_CHECKING:
    import grpc

# Where the runtimes listen, first found first taken.
SOCKETS = (
    Path("/run/containerd/containerd.sock"),
    Path("/run/crio/crio.sock"),
    Path("/run/k3s/containerd/containerd.sock"),
)

# Why: gRPC's own is two minutes, in which a runtime that is back would not be asked.
_RECONNECT_MS = 1000
_POD_UID = "io.kubernetes.pod.uid"  # labels that the kubelet gives to containers
_CONTAINER_NAME = "io.kubernetes.container.name"
_RUNNING = 1  # ContainerState.CONTAINER_RUNNING
_PACKAGE = "runtime.v1"
_SERVICE = f"/{_PACKAGE}.RuntimeService"

# Only what is read or sent. Source: k8s.io/cri-api pkg/apis/runtime/v1/api.proto.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Label": {"key": (1, "string"), "value": (2, "string")},
    "VersionRequest": {"version": (1, "string")},
    "VersionResponse": {"runtime_name": (2, "string"), "runtime_version": (3, "string")},
    "StateValue": {"state": (1, "int32")},
    "ContainerFilter": {"state": (2, "StateValue"), "label_selector": (4, "*Label")},
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
        # Its C library would print about connections, and a call would wait for whoever reads standard error.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            import grpc
        except ImportError as error:
            raise SupportError(
                "executor cri", str(error), "Install koordebpf with its extra: koordebpf[cri]."
            ) from error
        self._grpc = grpc
        self._messages = _message_classes()
        # A pod has a few containers; its name as the authority is what containerd expects of a Unix socket.
        options = [("grpc.default_authority", "localhost"), ("grpc.max_reconnect_backoff_ms", _RECONNECT_MS)]
        self._channel = grpc.insecure_channel(f"unix:{path}", options=options)
        self._lock = threading.Lock()
        self._calls: dict[str, Any] = {}

    def version(self, timeout_s: float = 5.0) -> str:
        """Return the runtime's name and version. Raises: KubeError."""
        answer = self._ask("Version", self._messages["VersionRequest"](version="v1"), timeout_s)
        return f"{answer.runtime_name} {answer.runtime_version}"

    def warm(self, timeout_s: float) -> None:
        """Connect, and have everything ready that a stop needs; what is there already costs one call.

        Raises:  KubeError: the runtime does not answer.
        """
        request = self._messages["VersionRequest"](version="v1")
        # As stops are called: the thread that waits for answers is started by the first of such calls.
        waiting = self._call("Version").future(request, timeout=timeout_s)
        try:
            waiting.result()
        except self._grpc.RpcError as error:
            raise self._error("Version", error) from error
        self._call("ListContainers")
        self._call("StopContainer")

    def running(self, pod_uid: str, timeout_s: float) -> tuple[RunningContainer, ...]:
        """Return every container of the pod that runs. Raises: KubeError."""
        messages = self._messages
        wanted = messages["ContainerFilter"](
            state=messages["StateValue"](state=_RUNNING),
            label_selector=[messages["Label"](key=_POD_UID, value=pod_uid)],
        )
        answer = self._ask("ListContainers", messages["ListContainersRequest"](filter=wanted), timeout_s)
        found = []
        for each in answer.containers:
            labels = {label.key: label.value for label in each.labels}
            # A runtime that does not know a filter must not make other pods' containers ours.
            if labels.get(_POD_UID) == pod_uid and each.state == _RUNNING:
                found.append(RunningContainer(each.id, labels.get(_CONTAINER_NAME, each.id)))
        return tuple(found)

    def stop(self, containers: Sequence[RunningContainer], *, grace_s: int, timeout_s: float) -> tuple[StopResult, ...]:
        """Stop them side by side and wait for all; one that is gone counts as stopped.

        Args:
            containers: of one pod.
            grace_s: between SIGTERM and SIGKILL; 0: SIGKILL at once.
            timeout_s: how long the runtime may take beyond the grace.
        """
        call = self._call("StopContainer")
        waiting = [
            (
                each,
                call.future(
                    self._messages["StopContainerRequest"](container_id=each.id, timeout=grace_s),
                    timeout=grace_s + timeout_s,
                    wait_for_ready=False,
                ),
            )
            for each in containers
        ]
        results = []
        for container, answer in waiting:
            try:
                answer.result()
            except self._grpc.RpcError as error:
                failed = self._error("StopContainer", error)
                results.append(StopResult(container, None if isinstance(failed, KubeGone) else str(failed)))
            else:
                results.append(StopResult(container, None))
        return tuple(results)

    def close(self) -> None:
        """Cut every call short; twice is harmless."""
        self._channel.close()

    def _ask(self, method: str, request: Any, timeout_s: float) -> Any:
        try:
            return self._call(method)(request, timeout=timeout_s)
        except self._grpc.RpcError as error:
            raise self._error(method, error) from error

    def _call(self, method: str) -> Any:
        with self._lock:
            if method not in self._calls:
                self._calls[method] = self._channel.unary_unary(
                    f"{_SERVICE}/{method}",
                    request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=self._messages[f"{method}Response"].FromString,
                )
            return self._calls[method]

    def _error(self, method: str, error: grpc.RpcError) -> KubeError:
        code, detail = error.code(), error.details()
        sentence = f"{method}: the container runtime says {code.name}: {detail}"
        if code is self._grpc.StatusCode.NOT_FOUND:
            return KubeGone(sentence, 404)
        return KubeError(sentence, retry=code is not self._grpc.StatusCode.UNIMPLEMENTED)


def _message_classes() -> dict[str, Any]:
    return message_classes(_PACKAGE, _MESSAGES)
