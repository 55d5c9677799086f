"""One registration with a runtime, without its socket and clock: bytes in, bytes out, and what the state is.

Calls are answered in the order in which they came, each at once. The plugin itself makes one call, RegisterPlugin.

Source: containerd/nri pkg/adaptation/plugin.go (the runtime's side), pkg/stub/stub.go.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from koordebpf.errors import DecodeError, KubeError
from koordebpf.kube.clients.grpc import CODES
from koordebpf.kube.clients.protobuf import decode, encode
from koordebpf.kube.nri.values import (
    EVENTS,
    NRI_MESSAGES,
    PLUGIN_SERVICE,
    RUNTIME_SERVICE,
    TTRPC_MESSAGES,
    Answering,
    NriContainer,
    NriCounts,
    NriPod,
    NriResources,
    container_of,
    create_answer,
    judged,
    pod_of,
    problem_of,
    update_answer,
)
from koordebpf.kube.runtime_settings import NriSettings
from koordebpf.printable import printable
from koordebpf.units import NS_PER_MS

PLUGIN_CONN, RUNTIME_CONN = 1, 2  # calls of the runtime, calls of the plugin
REQUEST, RESPONSE = 1, 2
MOST_DATA = 4 << 20  # of a message, by ttrpc's own rule
_FRAME = struct.Struct("!II")
_HEADER = struct.Struct("!IIBB")
# Why 4,096: the receiver reads a frame into the buffer of a bufio.Reader, and fails with ENOMEM where it has more.
_MOST_SENT = 4096
_REGISTER_STREAM = 1
_UNKNOWN, _INVALID, _EXHAUSTED, _UNIMPLEMENTED, _INTERNAL = (
    CODES.index(name) for name in ("UNKNOWN", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "INTERNAL")
)
_EMPTY = b""
_SAID = 300  # characters of what a runtime says of itself


# ttrpc on a multiplexed connection, without its socket: bytes in, messages out, and the reverse.
#
# Shape:   a frame is connection ID and length, 4 bytes each, then bytes of that connection; in those a message is
#          length and stream ID, 4 bytes each, type and flags, one each, then its data. All big endian.
# Source:  containerd/nri pkg/net/multiplex/mux.go; containerd/ttrpc PROTOCOL.md, channel.go.


class Message(NamedTuple):
    """One message. `data` is None of one that exceeds `MOST_DATA`: it was dropped."""

    conn: int
    stream: int
    kind: int
    data: bytes | None


def frames_of(conn: int, stream: int, kind: int, data: bytes) -> bytes:
    """Return the bytes that send one message.

    Raises:  ValueError: it exceeds MOST_DATA.
    """
    if len(data) > MOST_DATA:
        raise ValueError(f"a message of {len(data)} bytes, more than {MOST_DATA}")
    whole = _HEADER.pack(len(data), stream, kind, 0) + data
    out = bytearray()
    for at in range(0, len(whole), _MOST_SENT):
        part = whole[at : at + _MOST_SENT]
        out += _FRAME.pack(conn, len(part)) + part
    return bytes(out)


class Wire:
    """What one socket delivers, put together. What a connection may make it keep is one message."""

    def __init__(self) -> None:
        self._head = bytearray()  # of a frame
        self._conn = self._left = 0  # the frame that is being received, and how many bytes of it are missing
        self._streams: dict[int, _Messages] = {
            PLUGIN_CONN: _Messages(PLUGIN_CONN),
            RUNTIME_CONN: _Messages(RUNTIME_CONN),
        }

    def feed(self, data: bytes) -> Iterator[Message]:
        """Take in what was received; yield the messages that are complete. Frames of other connections are skipped.

        Raises:  DecodeError: a frame that no sender of this protocol makes.
        """
        view = memoryview(data)
        while view:
            if not self._left:
                missing = _FRAME.size - len(self._head)
                self._head += view[:missing]
                view = view[missing:]
                if len(self._head) < _FRAME.size:
                    return
                self._conn, self._left = _FRAME.unpack(self._head)
                self._head.clear()
                if self._left > MOST_DATA + _HEADER.size:
                    raise DecodeError(f"a frame of {self._left} bytes, more than {MOST_DATA + _HEADER.size}")
                continue
            part, view = view[: self._left], view[self._left :]
            self._left -= len(part)
            if (messages := self._streams.get(self._conn)) is not None:
                yield from messages.feed(part)


class _Messages:
    def __init__(self, conn: int) -> None:
        self._conn = conn
        self._kept = bytearray()
        self._dropping = 0  # bytes of a message that is too large

    def feed(self, part: memoryview) -> Iterator[Message]:
        dropped = min(self._dropping, len(part))
        self._dropping -= dropped
        self._kept += part[dropped:]
        while len(self._kept) >= _HEADER.size:
            length, stream, kind, _ = _HEADER.unpack_from(self._kept)
            if length > MOST_DATA:
                rest = len(self._kept) - _HEADER.size
                self._dropping = max(0, length - rest)
                del self._kept[: _HEADER.size + min(length, rest)]
                yield Message(self._conn, stream, kind, None)
                continue
            end = _HEADER.size + length
            if len(self._kept) < end:
                return
            with memoryview(self._kept) as view:
                body = bytes(view[_HEADER.size : end])
            del self._kept[:end]
            yield Message(self._conn, stream, kind, body)


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
                self._receive_answer(message)
            elif message.kind == REQUEST:
                yield self._answer(message)

    # Of RegisterPlugin, the only call that is made.
    def _receive_answer(self, message: Message) -> None:
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
