"""A small HTTP server that no client can starve: one thread, non-blocking sockets, a bound on everything.

It answers one GET or HEAD per connection out of memory and closes it. Why not the standard library's server: it has a
thread per connection and a time-out per read, so that a few clients that send a byte now and then occupy all of them.

What holds whatever clients do:

- a connection has one deadline, for its request and its reply together;
- a listener keeps a fixed number of connections, and a smaller number per peer address; at a limit the connection that
  has waited longest is closed, so that a new client always gets its turn;
- a peer that connects more often than `Limits.rate_per_s` is closed at once;
- after 0.3 ms of work the thread lets others have the interpreter, and rests so long that it uses no more than
  `Limits.share` of a CPU, a short burst aside; what arrives meanwhile waits in the kernel.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec

from koordebpf.errors import ConfigError, os_reason
from koordebpf.kernel.io.worker import Supervisor

_BACKLOG: Final = 1024  # Why: what a flood of 5,000 connections a second leaves while the thread rests
_BATCH_S: Final = 0.0003  # of CPU time, then a rest as long. Why: so long the loop may wait for the interpreter
_BURST_S: Final = 0.02  # of CPU time before the share counts. Why: several scrapers and probes at once
_LONGEST_REST_S: Final = 0.25
_FAILED_S: Final = 0.1  # until the next try where no descriptor is left
_READ_BYTES: Final = 4096
_MAX_PEERS: Final = 1024  # addresses whose rate is remembered
_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_ENDS: Final = (b"\r\n\r\n", b"\n\n")


class Request(NamedTuple):
    """One request. Header names are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]


class Reply(msgspec.Struct, frozen=True):
    """What is sent back, for a HEAD without its body."""

    status: str
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Limits(msgspec.Struct, frozen=True):
    """Of one listener.

    `connections`   at once. Why 64: the kubelet and a few scrapers need ten; each costs a descriptor and a few KiB.
    `per_peer`      of them from one address. Why 16: several scrapers behind one address.
    `rate_per_s`    new connections of one address, after a burst of twice as many. Why 20: scrapers need one, and to
                    serve 50 pages took all of the share, so that no client was refused any more.
    `deadline_s`    for a request and its reply together.
    `head_bytes`    of a request line with its headers.
    `share`         of a CPU that it uses at most. Why 2 %: what a flood may take from the pods of a node. The loop does
                    not wait longer with more, since the work comes in pieces.
    """

    connections: int = 64
    per_peer: int = 16
    rate_per_s: float = 20.0
    deadline_s: float = 5.0
    head_bytes: int = 8192
    share: float = 0.02


LIMITS: Final = Limits()


class _State(Enum):
    READING = auto()
    SENDING = auto()
    DRAINING = auto()  # a body may still come; closed before it is read, the connection would lose the reply


class _Connection:
    def __init__(self, sock: socket.socket, peer: str | None, due_s: float) -> None:
        self.sock = sock
        self.peer = peer  # None: of a Unix socket, which has no addresses
        self.due_s = due_s
        self.state = _State.READING
        self.head = b""
        self.left = memoryview(b"")  # of the reply
        self.has_body = False
        self.awaits = 0  # what the selector has it registered for


class _Peers:
    """The rate of new connections by address: a bucket of tokens each."""

    def __init__(self, rate_per_s: float) -> None:
        self._rate = rate_per_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, as of when

    def may_connect(self, peer: str | None, now_s: float) -> bool:
        if peer is None:
            return True
        tokens, at_s = self._buckets.pop(peer, (2 * self._rate, now_s))
        tokens = min(tokens + (now_s - at_s) * self._rate, 2 * self._rate)
        self._buckets[peer] = (max(tokens - 1, 0.0), now_s)
        if len(self._buckets) > _MAX_PEERS:
            self._buckets.popitem(last=False)
        return tokens >= 1


class CpuShare:
    """How long a thread has to rest so that it uses no more than `share` of a CPU; 20 ms at once are free."""

    def __init__(self, share: float, now_s: float) -> None:
        self._share = share
        self._used_s = 0.0  # what the share has not made good yet
        self._at_s = now_s

    def rest_s(self, used_s: float, now_s: float) -> float:
        """Take note of CPU time that was used until now; return the rest, 0.25 s at most."""
        self._used_s = max(self._used_s - (now_s - self._at_s) * self._share, 0.0) + used_s
        self._at_s = now_s
        return min(max(self._used_s - _BURST_S, 0.0) / self._share, _LONGEST_REST_S)


class HttpListener:
    """Answers on one listening socket from a background thread until `close`, which closes the socket too.

    `answer` is called from that thread; it must not block. `begin` is what the thread does first.
    """

    def __init__(
        self,
        sock: socket.socket,
        answer: Callable[[Request], Reply],
        limits: Limits = LIMITS,
        name: str = "http",
        begin: Callable[[], object] | None = None,
    ) -> None:
        sock.setblocking(False)
        sock.listen(_BACKLOG)
        self._sock = sock
        self._answer = answer
        self._limits = limits
        self._begin = begin
        self._connections: OrderedDict[_Connection, None] = OrderedDict()  # oldest first
        self._peers = _Peers(limits.rate_per_s)
        self._share = CpuShare(limits.share, time.monotonic())
        self._selector = selectors.DefaultSelector()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        self._selector.register(sock, selectors.EVENT_READ)
        self._closing = False
        self._supervisor = Supervisor(name)
        self._thread = self._supervisor.thread(self._run, again=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and close every socket."""
        self._closing = True
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join()
        for connection in self._connections:
            connection.sock.close()
        self._sock.close()
        self._selector.close()
        os.close(self._wake_fd)

    def _run(self) -> None:
        if self._begin:
            self._supervisor.call(self._begin)
        while not self._closing:
            try:
                self._serve_batch()
            except Exception as error:  # probes that are not answered any more would end the agent
                self._supervisor.failed(error)
                time.sleep(_FAILED_S)  # it may fail with every request

    def _serve_batch(self) -> None:
        events = self._selector.select(self._timeout_s())
        before_s = time.thread_time()
        end_s = before_s + _BATCH_S
        for key, _ in events:
            if key.fileobj is self._sock:
                self._accept(end_s)
            elif key.data in self._connections:  # not dropped in this batch
                self._serve(key.data)
            if time.thread_time() >= end_s:
                break  # epoll begins with the others next time
        self._drop_late()
        used_s = time.thread_time() - before_s
        rest_s = self._share.rest_s(used_s, time.monotonic())
        if rest_s or used_s >= _BATCH_S:
            time.sleep(max(rest_s, _BATCH_S))

    def _timeout_s(self) -> float | None:
        oldest = next(iter(self._connections), None)
        return max(oldest.due_s - time.monotonic(), 0.0) if oldest else None

    def _accept(self, end_s: float) -> None:
        now_s = time.monotonic()
        while time.thread_time() < end_s:
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor is left
                if self._connections:
                    self._drop(next(iter(self._connections)))
                time.sleep(_FAILED_S)
                return
            peer = str(address[0]) if isinstance(address, tuple) else None
            if not self._peers.may_connect(peer, now_s):
                sock.close()
                continue
            self._make_room(peer)
            connection = _Connection(sock, peer, now_s + self._limits.deadline_s)
            self._connections[connection] = None
            self._serve(connection)

    def _make_room(self, peer: str | None) -> None:
        if peer is not None:
            of_peer = [each for each in self._connections if each.peer == peer]
            if len(of_peer) >= self._limits.per_peer:
                self._drop(of_peer[0])
        if len(self._connections) >= self._limits.connections:
            self._drop(next(iter(self._connections)))

    def _drop_late(self) -> None:
        now_s = time.monotonic()
        while self._connections and (oldest := next(iter(self._connections))).due_s <= now_s:
            self._drop(oldest)

    def _drop(self, connection: _Connection) -> None:
        del self._connections[connection]
        if connection.awaits:
            self._selector.unregister(connection.sock)
        connection.sock.close()

    def _await(self, connection: _Connection, events: int) -> None:
        if connection.awaits == 0:
            self._selector.register(connection.sock, events, connection)
        elif connection.awaits != events:
            self._selector.modify(connection.sock, events, connection)
        connection.awaits = events

    def _serve(self, connection: _Connection) -> None:
        try:
            if connection.state is _State.READING:
                self._read(connection)
            if connection.state is _State.SENDING:
                self._send(connection)
            elif connection.state is _State.DRAINING and not connection.sock.recv(_READ_BYTES, _FLAGS):
                self._drop(connection)
        except BlockingIOError:
            sends = connection.state is _State.SENDING
            self._await(connection, selectors.EVENT_WRITE if sends else selectors.EVENT_READ)
        except OSError:  # the client is gone
            self._drop(connection)

    def _read(self, connection: _Connection) -> None:
        read = connection.sock.recv(_READ_BYTES, _FLAGS)
        connection.head += read
        is_whole = any(end in connection.head for end in _ENDS)
        if not read:
            raise ConnectionAbortedError
        if is_whole or len(connection.head) > self._limits.head_bytes:
            request = parse_head(connection.head) if is_whole else None
            reply = self._reply(request) if is_whole else _plain("431 Request Header Fields Too Large")
            connection.left = memoryview(_encoded(reply, has_body=request is None or request.method != "HEAD"))
            connection.has_body = request is None or request.method not in ("GET", "HEAD")
            connection.head = b""
            connection.state = _State.SENDING
        else:
            raise BlockingIOError  # the rest has not come yet

    def _send(self, connection: _Connection) -> None:
        while connection.left:
            sent = connection.sock.send(connection.left, _FLAGS)
            connection.left = connection.left[sent:]
        if not connection.has_body:
            self._drop(connection)
            return
        connection.sock.shutdown(socket.SHUT_WR)
        connection.state = _State.DRAINING
        self._await(connection, selectors.EVENT_READ)

    def _reply(self, request: Request | None) -> Reply:
        if request is None:
            return _plain("400 Bad Request")
        if request.method not in ("GET", "HEAD"):
            return _plain("405 Method Not Allowed")
        try:
            reply = self._answer(request)
        except Exception as error:
            self._supervisor.failed(error)
            return _plain("500 Internal Server Error")
        self._supervisor.worked()
        return reply


def parse_head(head: bytes) -> Request | None:
    """Return the request; None: it is no HTTP/1 request."""
    first, *lines = head.decode("latin-1").replace("\r\n", "\n").partition("\n\n")[0].split("\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        return None
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    path, _, query = words[1].partition("?")
    return Request(words[0], path, query, headers)


def _plain(status: str) -> Reply:
    return Reply(status, "text/plain", f"{status}\n".encode())


def _encoded(reply: Reply, *, has_body: bool) -> bytes:
    headers = (
        ("Content-Type", reply.content_type),
        ("Content-Length", str(len(reply.body))),
        ("Connection", "close"),
        *reply.headers,
    )
    lines = [f"HTTP/1.1 {reply.status}", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1") + (reply.body if has_body else b"")


def bound_to(listen: str, option: str) -> socket.socket:
    """Return a TCP socket that is bound to `host:port`; no client can connect before it is listened on.

    Raises:  ConfigError: `listen` is not `host:port` or cannot be bound.
    """
    host, port = parse_listen(listen, option)
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise ConfigError(option, listen, f"cannot be bound: {os_reason(error)}") from error
    return sock


def parse_listen(listen: str, option: str) -> tuple[str, int]:
    """Return host and port.

    Raises:  ConfigError: `listen` is not `host:port`.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(option, listen, "must be host:port, with port 0…65535")
    return host.strip("[]"), int(port)


def probes_beside(listen: str) -> str:
    """Return where probes are answered if only the address of the metrics was given: two ports further.

    >>> probes_beside("0.0.0.0:9320"), probes_beside("[::1]:0"), probes_beside("")
    ('0.0.0.0:9322', '[::1]:0', '')
    """
    if not listen:
        return ""
    _, port = parse_listen(listen, "--listen")
    return f"{listen.rpartition(':')[0]}:{port + 2 if port else 0}"
