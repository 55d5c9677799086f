"""One registration with a runtime, without its socket and clock: bytes in, bytes out, and what the state is.

Calls are answered in the order in which they came, each at once. The plugin itself makes one call, RegisterPlugin.

Source: containerd/nri pkg/adaptation/plugin.go (the runtime's side), pkg/stub/stub.go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from koordebpf.errors import DecodeError, KubeError
from koordebpf.kube.clients.grpc import CODES
from koordebpf.kube.clients.protobuf import decode, encode
from koordebpf.kube.nri.counts import NriCounts
from koordebpf.kube.nri.messages import EVENTS, NRI_MESSAGES, PLUGIN_SERVICE, RUNTIME_SERVICE, TTRPC_MESSAGES
from koordebpf.kube.nri.settings import NriSettings
from koordebpf.kube.nri.values import (
    Answering,
    NriContainer,
    NriPod,
    NriResources,
    container_of,
    create_answer,
    judged,
    pod_of,
    problem_of,
    update_answer,
)
from koordebpf.kube.nri.wire import PLUGIN_CONN, REQUEST, RESPONSE, RUNTIME_CONN, Message, Wire, frames_of
from koordebpf.printable import printable
from koordebpf.units import NS_PER_MS

_REGISTER_STREAM = 1
_UNKNOWN, _INVALID, _EXHAUSTED, _UNIMPLEMENTED, _INTERNAL = (
    CODES.index(name) for name in ("UNKNOWN", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "INTERNAL")
)
_EMPTY = b""
_SAID = 300  # characters of what a runtime says of itself


class RegistrationRefused(KubeError):
    """The runtime does not take the plugin, or ends the registration."""


class Session:
    """A connection from its first byte to its last.

    Args:
        settings: under which name the plugin registers, and for which events.
        answering: what is asked for each container.
        counts: where calls are counted.
    """

    def __init__(self, settings: NriSettings, answering: Answering, counts: NriCounts) -> None:
        self.is_configured = False  # the runtime has taken the plugin
        self.is_synchronized = False
        self.runtime = ""  # its name and version
        self._settings = settings
        self._answering = answering
        self._counts = counts
        self._wire = Wire()
        self._methods: Mapping[str, Callable[[bytes], bytes]] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": self._create_container,
            "UpdateContainer": self._update_container,
            "StateChange": self._state_change,
            # Without a subscription they do not come; one that comes all the same changes nothing.
            "StopContainer": _nothing,
            "UpdatePodSandbox": _nothing,
            "Shutdown": _nothing,
        }

    def opening(self) -> bytes:
        """Return what is sent first."""
        payload = encode(
            NRI_MESSAGES,
            "RegisterPluginRequest",
            {"plugin_name": self._settings.name, "plugin_idx": self._settings.index},
        )
        request = {"service": RUNTIME_SERVICE, "method": "RegisterPlugin", "payload": payload}
        data = encode(TTRPC_MESSAGES, "Request", request)
        return frames_of(RUNTIME_CONN, _REGISTER_STREAM, REQUEST, data)

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Take in what was received; yield the answer of each call as soon as it is there.

        Raises:  DecodeError: this is no such protocol. RegistrationRefused.
        """
        for message in self._wire.feed(data):
            if message.conn == RUNTIME_CONN:
                self._take_answer(message)
            elif message.kind == REQUEST:
                yield self._answer(message)

    # Of RegisterPlugin, the only call that is made.
    def _take_answer(self, message: Message) -> None:
        if message.kind != RESPONSE or message.stream != _REGISTER_STREAM:
            return
        status = decode(TTRPC_MESSAGES, "Response", message.data or b"")["status"] or {}
        if status.get("code"):
            raise RegistrationRefused(f"the runtime refuses the plugin: {_said(status['message'])}")

    def _answer(self, message: Message) -> bytes:
        started_ns = time.monotonic_ns()
        method = ""
        try:
            if message.data is None:
                raise _Failed(_EXHAUSTED, "a message of more than 4 MiB")
            request = decode(TTRPC_MESSAGES, "Request", message.data)
            method = request["method"]
            if request["service"] != PLUGIN_SERVICE or method not in self._methods:
                raise _Failed(_UNIMPLEMENTED, f"there is no method {_said(method)}")
            response: dict[str, Any] = {"payload": self._methods[method](request["payload"])}
        except _Failed as failed:
            response = {"status": {"code": failed.code, "message": str(failed)}}
        except DecodeError as error:
            response = {"status": {"code": _INVALID, "message": str(error)}}
        except Exception as error:  # a fault of ours ends one call, not the connection
            self._counts.failed(f"{_said(method)}: {type(error).__name__}: {_said(str(error))}")
            response = {"status": {"code": _INTERNAL, "message": type(error).__name__}}
        answer = frames_of(PLUGIN_CONN, message.stream, RESPONSE, encode(TTRPC_MESSAGES, "Response", response))
        if method in self._methods:
            is_ok = "status" not in response
            self._counts.took(method, (time.monotonic_ns() - started_ns) / NS_PER_MS, is_ok=is_ok)
        return answer

    def _configure(self, payload: bytes) -> bytes:
        request = decode(NRI_MESSAGES, "ConfigureRequest", payload)
        self.runtime = _said(f"{request['runtime_name']} {request['runtime_version']}".strip())
        self.is_configured = True
        mask = sum(1 << (EVENTS[name] - 1) for name in set(self._settings.events))
        return encode(NRI_MESSAGES, "ConfigureResponse", {"events": mask})

    # Containers that run were adjusted when they were created, or are corrected by the reconciler.
    def _synchronize(self, payload: bytes) -> bytes:
        more = decode(NRI_MESSAGES, "SynchronizeRequest", payload)["more"]
        self.is_synchronized = not more
        return encode(NRI_MESSAGES, "SynchronizeResponse", {"more": more})

    def _create_container(self, payload: bytes) -> bytes:
        request = decode(NRI_MESSAGES, "ContainerRequest", payload)
        return create_answer(self._resources(pod_of(request["pod"]), container_of(request["container"])))

    def _update_container(self, payload: bytes) -> bytes:
        request = decode(NRI_MESSAGES, "ContainerRequest", payload)
        container = container_of(request["container"])
        return update_answer(container.id, self._resources(pod_of(request["pod"]), container))

    def _state_change(self, payload: bytes) -> bytes:
        request = decode(NRI_MESSAGES, "StateChangeEvent", payload)
        pod = pod_of(request["pod"])
        try:
            if request["event"] == EVENTS["RunPodSandbox"]:
                self._answering.pod_started(pod)
            elif request["event"] == EVENTS["RemovePodSandbox"]:
                self._answering.pod_removed(pod)
        except Exception as error:  # whatever is wrong with one pod concerns that one alone
            self._failed(problem_of(pod, error))
        return _EMPTY

    def _resources(self, pod: NriPod, container: NriContainer) -> NriResources | None:
        answer = judged(self._answering, pod, container)
        for problem in answer.problems:
            self._failed(problem)
        if answer.resources is not None:
            self._counts.adjusted += 1
        return answer.resources

    def _failed(self, problem: str) -> None:
        sentence = _said(problem)
        self._counts.failed(sentence)
        if self._settings.failure_policy == "fail":
            raise _Failed(_UNKNOWN, sentence)


class _Failed(Exception):
    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def _nothing(_payload: bytes) -> bytes:
    return _EMPTY


def _said(text: str) -> str:
    return printable(text[:_SAID])
