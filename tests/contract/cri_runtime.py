"""A container runtime of our own making, over a real gRPC connection on a Unix socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from koordebpf.kube.clients.cri import MESSAGES, PACKAGE
from tests.contract.protobuf_classes import message_classes
from tests.support.patience import patience

RUNNING, EXITED, UNKNOWN = 1, 2, 3


class Runtime:
    """A container runtime: what it was asked, and what it holds, pod uid → name → state."""

    def __init__(self, socket: Path) -> None:
        self.messages = message_classes(PACKAGE, MESSAGES)
        self.pods: dict[str, dict[str, int]] = {}
        self.versions = 0  # how often it was asked for
        self.calls: list[str] = []  # of those that name a pod or a container, in their order
        self.listed: list[str] = []  # pods whose containers were asked for
        self.asked_ns: list[int] = []  # when a stop was asked for, answered or not
        self.stopped: list[tuple[str, int]] = []
        self.fails: dict[str, tuple[grpc.StatusCode, str]] = {}  # by container, or ListContainers
        self.filters = True
        self.on_asked: Callable[[str], None] = lambda _: None  # before a stop is answered or fails
        self.on_stop: Callable[[str], None] = lambda _: None  # ends the processes of a container
        self.hold = threading.Event()
        self.hold.set()
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((self._handler(),))
        self._server.add_insecure_port(f"unix:{socket}")
        self._server.start()

    def _handler(self) -> grpc.GenericRpcHandler:
        answers: dict[str, Callable[[Any, grpc.ServicerContext], Any]] = {
            "Version": self._version,
            "ListContainers": self._list,
            "StopContainer": self._stop,
        }
        return grpc.method_handlers_generic_handler(
            f"{PACKAGE}.RuntimeService",
            {
                name: grpc.unary_unary_rpc_method_handler(
                    answer,
                    request_deserializer=self.messages[f"{name}Request"].FromString,
                    response_serializer=lambda message: message.SerializeToString(),
                )
                for name, answer in answers.items()
            },
        )

    def _version(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.versions += 1
        return self.messages["VersionResponse"](runtime_name="own", runtime_version="1.0")

    def _list(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.calls.append("ListContainers")
        if failure := self.fails.get("ListContainers"):
            context.abort(*failure)
        wanted = {label.key: label.value for label in request.filter.label_selector}
        self.listed.append(wanted["io.kubernetes.pod.uid"])
        label = self.messages["Label"]
        containers = [
            self.messages["Container"](
                id=f"{uid}-{name}",
                state=state,
                labels=[
                    label(key="io.kubernetes.pod.uid", value=uid),
                    label(key="io.kubernetes.container.name", value=name),
                ],
            )
            for uid, names in self.pods.items()
            for name, state in names.items()
            if not self.filters or wanted["io.kubernetes.pod.uid"] == uid
        ]
        return self.messages["ListContainersResponse"](containers=containers)

    def _stop(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.calls.append("StopContainer")
        self.asked_ns.append(time.monotonic_ns())
        self.on_asked(request.container_id)
        self.hold.wait(patience(30))
        if failure := self.fails.get(request.container_id):
            context.abort(*failure)
        if any(request.container_id == f"{uid}-{name}" for uid, names in self.pods.items() for name in names):
            self.on_stop(request.container_id)  # a runtime takes the stop of any other one for done
        self.stopped.append((request.container_id, request.timeout))
        return self.messages["StopContainerResponse"]()

    def close(self) -> None:
        self.hold.set()
        self._server.stop(None).wait()
