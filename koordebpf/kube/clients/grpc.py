"""Calls of gRPC over a Unix socket: each has one request and one answer.

HTTP/2 is h2's, 1.3 MiB of memory; grpcio has threads of its own, which wake up 27 times a second, and is 17 MiB
(measured). Without those no thread reads between calls: what a server asks meanwhile (a ping, new settings) is
answered by the next call.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions

from koordebpf.errors import KubeError, os_reason

_PREFIX = struct.Struct("!BI")  # is compressed, length
_READ_BYTES = 1 << 16
_MOST_BYTES = 16 << 20  # of an answer. Why: 110 pods are 20 KB
_SIDE_BY_SIDE = 64  # calls on one connection. Why: servers allow 100 and more
# Source: https://github.com/grpc/grpc/blob/master/doc/statuscodes.md.
CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip


class GrpcError(KubeError):
    """A call failed. `code` is gRPC's name of the reason."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}", retry=code != "UNIMPLEMENTED")
        self.code = code


class GrpcSocket:
    """Connections to one Unix socket, made when they are needed and kept. Calls may come from any thread.

    A connection that broke while idle is reopened within the call.
    """

    def __init__(self, path: Path) -> None:
        """Remember where it is; nothing is connected yet."""
        self._path = path
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._used: set[_Connection] = set()
        self._is_closed = False

    def call(self, method: str, requests: Sequence[bytes], timeout_s: float) -> list[bytes | GrpcError]:
        """Make a call for each request, side by side; return each answer, or why there is none, in their order.

        Args:
            method: /package.Service/Method.
            requests: messages.
            timeout_s: for all of them together.
        """
        ends_s = time.monotonic() + timeout_s
        answers: list[bytes | GrpcError] = []
        for start in range(0, len(requests), _SIDE_BY_SIDE):
            answers += self._call(method, requests[start : start + _SIDE_BY_SIDE], ends_s)
        return answers

    def close(self) -> None:
        """Cut every call short; twice is harmless."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            for each in self._used:
                each.cut()
        for each in idle:
            each.close()

    def _call(self, method: str, requests: Sequence[bytes], ends_s: float) -> list[bytes | GrpcError]:
        while True:
            try:
                connection, is_kept = self._acquire(ends_s)
            except OSError as error:
                code = "DEADLINE_EXCEEDED" if isinstance(error, TimeoutError) else "UNAVAILABLE"
                return [GrpcError(code, f"{self._path}: {os_reason(error)}") for _ in requests]
            try:
                answers = connection.call(method, requests, ends_s)
            finally:
                self._put_back(connection)
            # The server was restarted meanwhile, and saw none of it.
            if not (is_kept and connection.is_unheard) or self._is_closed:
                return answers

    def _acquire(self, ends_s: float) -> tuple[_Connection, bool]:
        with self._lock:
            if self._is_closed:
                raise ConnectionAbortedError(0, "closed")
            if self._idle:
                connection = self._idle.pop()
                self._used.add(connection)
                return connection, True
        connection = _Connection(self._path, ends_s)
        with self._lock:
            self._used.add(connection)
        if self._is_closed:
            connection.cut()
        return connection, False

    def _put_back(self, connection: _Connection) -> None:
        with self._lock:
            self._used.discard(connection)
            if connection.is_usable and not self._is_closed:
                self._idle.append(connection)
                return
        connection.close()


class _Call:
    """One call: what came of it so far."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.headers: dict[str, str] = {}
        self.failed: GrpcError | None = None

    def receive_headers(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.headers |= {name.decode(): value.decode(errors="replace") for name, value in headers}

    def answer(self) -> bytes | GrpcError:
        if self.failed:
            return self.failed
        status = self.headers.get("grpc-status", "")
        if status != "0":
            code = CODES[int(status)] if status.isdigit() and int(status) < len(CODES) else "UNKNOWN"
            default = f"HTTP status {self.headers.get(':status')}, gRPC status {status or 'none'}"
            return GrpcError(code, unquote(self.headers.get("grpc-message", "")) or default)
        if len(self.data) < _PREFIX.size:
            return GrpcError("INTERNAL", "an answer without a message")
        is_compressed, length = _PREFIX.unpack_from(self.data)
        if is_compressed or length != len(self.data) - _PREFIX.size:
            return GrpcError("INTERNAL", "an answer that is not one message, or compressed, which was not asked for")
        return bytes(self.data[_PREFIX.size :])


class _Http(h2.connection.H2Connection):
    MAX_CLOSED_STREAMS = 4 * _SIDE_BY_SIDE  # Why: of h2's own, 2^16, a call every 10 s makes MiBs in a week


class _Connection:
    """One HTTP/2 connection, used by one thread at a time."""

    def __init__(self, path: Path, ends_s: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._wait_until(ends_s)
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._http = _Http(h2.config.H2Configuration(header_encoding=None))
        self._http.initiate_connection()
        self._open: dict[int, _Call] = {}
        self._unsent: dict[int, memoryview] = {}  # of requests, by stream: what the server has no room for yet
        self.is_usable = True
        self.is_unheard = False  # the last calls failed with the connection, none of them answered in part

    def call(self, method: str, requests: Sequence[bytes], ends_s: float) -> list[bytes | GrpcError]:
        calls = [_Call() for _ in requests]
        self.is_unheard = True
        try:
            for call, request in zip(calls, requests, strict=True):
                self._start(call, method, request, ends_s)
            while self._open:
                self._feed()
                self._send(ends_s)
                self._wait_until(ends_s)
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    raise ConnectionResetError(0, "the server closed the connection")
                for event in self._http.receive_data(data):
                    self._see(event)
            self._send(ends_s)
        except TimeoutError:
            self.is_unheard = False
            self._fail(GrpcError("DEADLINE_EXCEEDED", "no answer in time"))
        except OSError as error:
            self._fail(GrpcError("UNAVAILABLE", os_reason(error)))
        except h2.exceptions.ProtocolError as error:
            self.is_unheard = False
            self._fail(GrpcError("INTERNAL", f"HTTP/2: {error}"))
        return [call.answer() for call in calls]

    def cut(self) -> None:
        """Close the connection for the thread that waits for an answer."""
        self.is_usable = False
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _fail(self, error: GrpcError) -> None:
        self.is_usable = False
        for call in self._open.values():
            call.failed = error
        self._open.clear()
        self._unsent.clear()

    def _start(self, call: _Call, method: str, request: bytes, ends_s: float) -> None:
        stream = self._http.get_next_available_stream_id()
        self._open[stream] = call
        left_ms = max(int((ends_s - time.monotonic()) * 1000), 1)
        self._http.send_headers(
            stream,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", method),
                (":authority", "localhost"),  # what containerd expects of a Unix socket
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("grpc-timeout", f"{left_ms}m"),
            ],
        )
        self._unsent[stream] = memoryview(_PREFIX.pack(0, len(request)) + request)

    def _feed(self) -> None:
        for stream, data in list(self._unsent.items()):
            while stream in self._open and data:
                room = min(self._http.local_flow_control_window(stream), self._http.max_outbound_frame_size)
                if room <= 0:
                    break
                self._http.send_data(stream, bytes(data[:room]), end_stream=len(data) <= room)
                data = data[room:]  # noqa: PLW2901 - what is left of it
            if data and stream in self._open:
                self._unsent[stream] = data
            else:
                del self._unsent[stream]

    def _send(self, ends_s: float) -> None:
        if data := self._http.data_to_send():
            self._wait_until(ends_s)
            self._socket.sendall(data)

    def _wait_until(self, ends_s: float) -> None:
        if (left_s := ends_s - time.monotonic()) <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)

    def _see(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ConnectionTerminated):  # GOAWAY: calls up to the last stream are still answered
            self.is_usable = False
            refused = [stream for stream in self._open if stream > (event.last_stream_id or 0)]
            for stream in refused:
                self._open.pop(stream).failed = GrpcError("UNAVAILABLE", "the server ends the connection")
            return
        call = self._open.get(getattr(event, "stream_id", None) or 0)
        if call is None:
            return
        self.is_unheard = False
        match event:
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                call.receive_headers(event.headers)
            case h2.events.DataReceived():
                call.data += event.data
                self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if len(call.data) > _MOST_BYTES:
                    call.failed = GrpcError("RESOURCE_EXHAUSTED", f"an answer of more than {_MOST_BYTES} bytes")
                    self._http.reset_stream(event.stream_id, h2.errors.ErrorCodes.CANCEL)
                    del self._open[event.stream_id]
            case h2.events.StreamEnded():
                del self._open[event.stream_id]
                if event.stream_id in self._unsent:  # it was answered before it was whole
                    self._http.reset_stream(event.stream_id, h2.errors.ErrorCodes.CANCEL)
            case h2.events.StreamReset():
                code = "CANCELLED" if event.error_code == h2.errors.ErrorCodes.CANCEL else "UNAVAILABLE"
                call.failed = GrpcError(code, f"the server reset the call ({event.error_code!r})")
                del self._open[event.stream_id]
