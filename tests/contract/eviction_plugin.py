"""An eviction plugin of our own making, over a real gRPC connection on a Unix socket, by the library protobuf."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from koordebpf.kube.plugins.messages import (
    PLUGIN_MESSAGES,
    PLUGIN_PACKAGE,
    POD_MESSAGES,
    REGISTRATION_MESSAGES,
    REGISTRATION_PACKAGE,
)
from tests.contract.protobuf_classes import message_classes

REGISTRATION = message_classes(REGISTRATION_PACKAGE, REGISTRATION_MESSAGES)
CLASSES = message_classes(PLUGIN_PACKAGE, PLUGIN_MESSAGES)
POD = message_classes("core.v1", POD_MESSAGES)["Pod"]


def pod(uid: str, extra: bytes = b"") -> bytes:
    """A Pod of this UID, with fields that the agent does not know."""
    return POD(metadata={"uid": uid}).SerializeToString() + extra


class Plugin:
    """Answers as its fields say; `asked` are the requests, by method."""

    def __init__(self, socket: Path, name: str = "") -> None:
        self.socket = socket
        self.info = {"type": "EvictionPlugin", "name": name or socket.stem, "supported_versions": ["v1alpha1"]}
        self.statuses: list[tuple[bool, str]] = []  # as it learned them
        self.met: dict[str, Any] = {}
        self.evict: list[dict[str, Any]] = []
        self.top: Callable[[Any], dict[str, Any]] = lambda request: {"target_pods": list(request.active_pods)}
        self.token = ""
        self.raw: bytes | None = None  # in place of every answer
        self.lacks: set[str] = set()  # methods that it does not have
        self.asked: dict[str, list[Any]] = {}
        self.takes_s: dict[str, float] = {}  # by method
        self.hold = threading.Event()
        self.hold.set()
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((self._handler(), self._registration()))
        self._server.add_insecure_port(f"unix:{socket}")
        self._server.start()

    def stop(self) -> None:
        self.hold.set()
        self._server.stop(0).wait()

    def _registration(self) -> grpc.GenericRpcHandler:
        def info(message: Any, context: grpc.ServicerContext) -> Any:
            self.hold.wait(30)
            return self.raw if self.raw is not None else REGISTRATION["PluginInfo"](**self.info).SerializeToString()

        def notified(message: Any, context: grpc.ServicerContext) -> Any:
            self.statuses.append((message.plugin_registered, message.error))
            return REGISTRATION["RegistrationStatusResponse"]().SerializeToString()

        methods = {"GetInfo": ("InfoRequest", info), "NotifyRegistrationStatus": ("RegistrationStatus", notified)}
        return grpc.method_handlers_generic_handler(
            f"{REGISTRATION_PACKAGE}.Registration",
            {
                name: grpc.unary_unary_rpc_method_handler(
                    handle,
                    request_deserializer=REGISTRATION[request].FromString,
                    response_serializer=lambda data: data,
                )
                for name, (request, handle) in methods.items()
            },
        )

    def _handler(self) -> grpc.GenericRpcHandler:
        answers: Iterable[tuple[str, str, str, Callable[[Any], dict[str, Any]]]] = (
            ("ThresholdMet", "GetThresholdMetRequest", "ThresholdMetResponse", lambda _: self.met),
            ("GetToken", "Empty", "GetTokenResponse", lambda _: {"token": self.token}),
            ("GetEvictPods", "GetEvictPodsRequest", "GetEvictPodsResponse", lambda _: {"evict_pods": self.evict}),
            (
                "GetTopEvictionPods",
                "GetTopEvictionPodsRequest",
                "GetTopEvictionPodsResponse",
                lambda request: self.top(request),
            ),
        )

        def method(name: str, request: str, response: str, answer: Callable[[Any], dict[str, Any]]) -> Any:
            def handle(message: Any, context: grpc.ServicerContext) -> bytes:
                if name in self.lacks:
                    context.abort(grpc.StatusCode.UNIMPLEMENTED, f"there is no {name}")
                self.asked.setdefault(name, []).append(message)
                self.hold.wait(30)
                time.sleep(self.takes_s.get(name, 0))
                return self.raw if self.raw is not None else CLASSES[response](**answer(message)).SerializeToString()

            return grpc.unary_unary_rpc_method_handler(
                handle, request_deserializer=CLASSES[request].FromString, response_serializer=lambda data: data
            )

        return grpc.method_handlers_generic_handler(
            f"{PLUGIN_PACKAGE}.EvictionPlugin", {name: method(name, *rest) for name, *rest in answers}
        )
