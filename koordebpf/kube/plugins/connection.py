"""One client of a gRPC server on a Unix socket: HTTP/2 by h2, unary calls, on a socket that never blocks.

A client is another program, and may be hostile: what it can make this remember, and for how long, has a bound.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
from collections.abc import Callable, Mapping
from urllib.parse import quote

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from koordebpf.errors import DecodeError
from koordebpf.kube.clients.grpc import CODES

log = logging.getLogger(__name__)

MOST_BYTES = 16 << 20  # of a request. Why: 500 pods of 30 KB, the most that a node has
_MOST_BUFFERED = 2 * MOST_BYTES  # of all requests and answers of one client
_STREAMS = 32  # Why: a manager has one call open at a time
_READ_BYTES = 1 << 16
_WINDOW_BYTES = 1 << 20
_UNSENT_BYTES = 1 << 18  # beyond it nothing more is read or made for a client that does not read
_PARTIAL_BYTES = 1 << 17  # Why: h2 keeps a frame of up to 16 MiB until it has all of it; ours are 16 KiB
_CALL_S = 15.0  # Why: longer than the 10 s that Katalyst gives a call

_PREFIX = struct.Struct("!BI")  # is compressed, length
_HEADERS = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-accept-encoding", "identity")]

Methods = Mapping[str, Callable[[bytes], bytes]]  # /package.Service/Method → message to message


class CallFailed(Exception):
    """A call that is answered with a gRPC status, by its name, and a sentence."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class _Stream:
    """One call: its request so far, then what is left of its answer."""

    def __init__(self, method: str, problem: CallFailed | None, now_s: float) -> None:
        self.method = method
        self.problem = problem
        self.began_s = now_s
        self.request = bytearray()
        self.answer: memoryview | None = None  # None: it is not worked out yet
        self.has_failed = False  # its status was sent before all of its request was there

    @property
    def held_bytes(self) -> int:
        return len(self.request) + (len(self.answer) if self.answer is not None else 0)


class _Http(h2.connection.H2Connection):
    MAX_CLOSED_STREAMS = 4 * _STREAMS  # as in kube/clients/grpc.py


class ServerConnection:
    """A client that is connected. `is_closed`: its socket is to be closed."""

    def __init__(self, client: socket.socket, methods: Methods, now_s: float) -> None:
        client.setblocking(False)
        self.client = client
        self.is_closed = False
        self.seen_s = now_s  # when it sent something last
        self._methods = methods
        self._streams: dict[int, _Stream] = {}
        self._unsent = bytearray()
        self._greeted_s: float | None = now_s  # since when it owes its settings
        self._unsent_s: float | None = None  # since when it takes nothing of what waits for it
        self._partial_bytes = 0  # that it sent since the last frame that was whole
        self._http = _Http(h2.config.H2Configuration(client_side=False, header_encoding=None))
        self._http.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: _STREAMS,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW_BYTES,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: _READ_BYTES // 4,
            },
        )
        self._http.initiate_connection()
        self._http.increment_flow_control_window(_WINDOW_BYTES)
        self._send(now_s)

    @property
    def is_idle(self) -> bool:
        """Whether no call of it is open."""
        return not self._streams

    @property
    def held_bytes(self) -> int:
        """What is kept for it: requests that are not whole, answers that it has not read."""
        return len(self._unsent) + sum(each.held_bytes for each in self._streams.values())

    @property
    def wants_read(self) -> bool:
        """Whether it may send more; not while it does not read."""
        return len(self._unsent) < _UNSENT_BYTES

    @property
    def wants_write(self) -> bool:
        """Whether something waits for room in its socket."""
        return bool(self._unsent)

    @property
    def due_s(self) -> float | None:
        """By when it has to have moved, on the clock of `now_s`; None: nothing is owed."""
        since = [each.began_s for each in self._streams.values()]
        since += [each for each in (self._greeted_s, self._unsent_s) if each is not None]
        return min(since) + _CALL_S if since else None

    def read(self, now_s: float) -> None:
        """Take in what it sent, answer what is complete, send what fits."""
        try:
            data = self.client.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.is_closed = True
            return
        self.seen_s = now_s
        try:
            events = self._http.receive_data(data)
            self._partial_bytes = 0 if events else self._partial_bytes + len(data)
            for event in events:
                self._see(event, now_s)
            if self._partial_bytes > _PARTIAL_BYTES:
                raise h2.exceptions.FrameTooLargeError(f"no frame within {self._partial_bytes} bytes")
        except h2.exceptions.ProtocolError as error:
            log.debug("a client broke the protocol: %s", error)
            self._flush(self._http.data_to_send())
            self.is_closed = True
            return
        self._send(now_s)

    def write(self, now_s: float) -> None:
        """Send what waits."""
        self._send(now_s)

    def close(self) -> None:
        """Close its socket, and say so first where that is possible."""
        with contextlib.suppress(h2.exceptions.ProtocolError, OSError):
            self._http.close_connection()
            self.client.send(bytes(self._unsent) + self._http.data_to_send())
        self.client.close()

    def _see(self, event: h2.events.Event, now_s: float) -> None:
        if isinstance(event, h2.events.RemoteSettingsChanged):
            self._greeted_s = None
            return
        if isinstance(event, h2.events.ConnectionTerminated):
            self.is_closed = True
            return
        if isinstance(event, h2.events.RequestReceived):
            self._streams[event.stream_id] = _opened(event.headers, now_s)
            return
        number = getattr(event, "stream_id", None) or 0
        stream = self._streams.get(number)
        if isinstance(event, h2.events.DataReceived):
            self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if stream is not None and not stream.has_failed:
                self._append(number, stream, event.data)
        elif stream is None:
            return
        elif isinstance(event, h2.events.StreamReset) or (
            isinstance(event, h2.events.StreamEnded) and stream.has_failed
        ):
            del self._streams[number]
        elif isinstance(event, h2.events.StreamEnded):
            self._answer(number, stream)

    def _append(self, number: int, stream: _Stream, data: bytes) -> None:
        stream.request += data
        length = _PREFIX.unpack_from(stream.request)[1] if len(stream.request) >= _PREFIX.size else 0
        is_too_much = sum(each.held_bytes for each in self._streams.values()) > _MOST_BUFFERED
        if is_too_much or max(length, len(stream.request) - _PREFIX.size) > MOST_BYTES:
            failed = CallFailed("RESOURCE_EXHAUSTED", f"a request of more than {MOST_BYTES} bytes")
            self._fail(number, failed, is_whole=False)

    def _answer(self, number: int, stream: _Stream) -> None:
        try:
            if stream.problem is not None:
                raise stream.problem
            message = self._methods[stream.method](_message(stream.request))
        except CallFailed as failed:
            self._fail(number, failed)
        except KeyError:
            self._fail(number, CallFailed("UNIMPLEMENTED", f"there is no method {stream.method}"))
        except DecodeError as error:
            self._fail(number, CallFailed("INVALID_ARGUMENT", str(error)))
        except Exception as error:  # a fault of ours ends one call, not the server
            log.exception("a call of %s", stream.method)
            self._fail(number, CallFailed("INTERNAL", f"{type(error).__name__}: {error}"))
        else:
            stream.request.clear()
            stream.answer = memoryview(_PREFIX.pack(0, len(message)) + message)
            self._http.send_headers(number, _HEADERS)

    # The rest of its request is still taken, and dropped, until the client ends it.
    def _fail(self, number: int, failed: CallFailed, *, is_whole: bool = True) -> None:
        self._http.send_headers(number, [*_HEADERS, *_trailers(failed.code, str(failed))], end_stream=True)
        if is_whole:
            del self._streams[number]
        else:
            self._streams[number].request.clear()
            self._streams[number].has_failed = True

    # As much of each answer as the client's windows allow, in turn; then as much as its socket takes.
    def _send(self, now_s: float) -> None:
        took = False
        while not self.is_closed:
            if len(self._unsent) < _UNSENT_BYTES:
                self._fill()
            self._unsent += self._http.data_to_send()
            had = len(self._unsent)
            self._flush(bytes(self._unsent))
            took = took or len(self._unsent) < had
            if len(self._unsent) == had and (had or not self._has_room()):
                break
        if not self._unsent or took:
            self._unsent_s = None
        if self._unsent and self._unsent_s is None:
            self._unsent_s = now_s

    def _has_room(self) -> bool:
        return any(
            each.answer is not None and self._http.local_flow_control_window(number) > 0
            for number, each in self._streams.items()
        )

    def _fill(self) -> None:
        for number, stream in list(self._streams.items()):
            if stream.answer is None:
                continue
            room = min(self._http.local_flow_control_window(number), self._http.max_outbound_frame_size)
            if room > 0 and stream.answer:
                self._http.send_data(number, bytes(stream.answer[:room]))
                stream.answer = stream.answer[room:]
            if not stream.answer:
                self._http.send_headers(number, _trailers("OK", ""), end_stream=True)
                del self._streams[number]

    def _flush(self, data: bytes) -> None:
        try:
            sent = self.client.send(data) if data else 0
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.is_closed = True
            return
        self._unsent[:] = data[sent:]


def _opened(headers: list[tuple[bytes, bytes]], now_s: float) -> _Stream:
    given = dict(headers)
    problem = None
    if given.get(b":method") != b"POST" or not given.get(b"content-type", b"").startswith(b"application/grpc"):
        problem = CallFailed("UNIMPLEMENTED", "not a call of gRPC")
    return _Stream(given.get(b":path", b"").decode(errors="replace"), problem, now_s)


def _message(request: bytearray) -> bytes:
    if len(request) < _PREFIX.size:
        raise CallFailed("INVALID_ARGUMENT", "a request without a message")
    is_compressed, length = _PREFIX.unpack_from(request)
    if is_compressed:
        raise CallFailed("UNIMPLEMENTED", "a compressed request, and only identity is accepted")
    if length != len(request) - _PREFIX.size:
        raise CallFailed("INVALID_ARGUMENT", "a request that is not one message")
    return bytes(request[_PREFIX.size :])


def _trailers(code: str, sentence: str) -> list[tuple[str, str]]:
    status = [("grpc-status", str(CODES.index(code)))]
    return [*status, ("grpc-message", quote(sentence[:500], safe=" "))] if sentence else status
