"""Connections that another thread can cut, and that are cut where an exchange lasts too long.

A thread that waits for the API server sleeps in the kernel: only shutdown(2) on its socket ends the wait at once. So
every socket of a transport is known here from before it connects, through the TLS handshake, until it is closed. A
time-out of the socket restarts with every byte: a server that trickles would hold a request for hours.
"""

from __future__ import annotations

import contextlib
import errno
import math
import socket
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import ClassVar, Final

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError
from urllib3.response import HTTPResponse

from koordebpf.kernel.io.worker import Supervisor

# A peer that is gone without a word: found after 20 + 3 · 10 s. A request it never acknowledges fails as soon.
# Why: guards trust a list of pods for 90 s; and what stands between drops a connection that is idle for minutes.
KEEPALIVE_S: Final = 50
_DEAD_PEER: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, KEEPALIVE_S * 1000),
)


class Limit:
    """When one exchange has to be over. `is_over`: it was not, and its sockets were cut.

    With `silence_s` it also ends that long after the last sign of life, which `alive` notes; `is_silent`: it did.
    """

    def __init__(self, seconds: float, silence_s: float = math.inf) -> None:
        self.silence_s = silence_s
        self.is_over = False
        self.sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._last_s = time.monotonic() + seconds
        self.ends_s = self._last_s  # time.monotonic()
        self.alive()

    def alive(self) -> None:
        """Note a sign of life."""
        self.ends_s = min(self._last_s, time.monotonic() + self.silence_s)

    @property
    def is_silent(self) -> bool:
        """Whether it ended for silence, long before its time."""
        return self.is_over and self.ends_s < self._last_s


class OpenConnections:
    """The open sockets of one transport. Owns a thread that cuts what has lasted too long, until `cut`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._is_cut = False
        self._limits: set[Limit] = set()
        self._next_s = float("inf")  # what the thread waits for
        self._thread: threading.Thread | None = None
        self._own = threading.local()  # limit: of the exchange that the calling thread is in

    def add(self, sock: socket.socket) -> None:
        """Know a socket, as one of the exchange that the calling thread is in.

        Raises:  OSError: all was cut already, or the time of the exchange is over.
        """
        limit: Limit | None = getattr(self._own, "limit", None)
        with self._changed:
            if self._is_cut:
                raise OSError(errno.ECANCELED, "the transport is closed")
            if limit is not None:
                if limit.is_over:
                    raise TimeoutError(errno.ETIMEDOUT, "the time of the exchange is over")
                limit.sockets.add(sock)
            self._sockets.add(sock)

    def start(self) -> None:
        """Start the thread, which the first limit does else; twice is harmless."""
        with self._changed:
            if self._thread is None and not self._is_cut:
                self._thread = Supervisor("wire-limits").thread(self._cut_late, again=True)
                self._thread.start()

    @contextlib.contextmanager
    def within(self, seconds: float, silence_s: float = math.inf) -> Iterator[Limit]:
        """Cut the exchange that the calling thread makes meanwhile after so long, however much of it has come.

        Cost:    20 µs.
        """
        self.start()
        limit = Limit(seconds, silence_s)
        with self._changed:
            self._limits.add(limit)
            if limit.ends_s < self._next_s:
                self._changed.notify()
        outer, self._own.limit = getattr(self._own, "limit", None), limit
        try:
            yield limit
        finally:
            self._own.limit = outer
            with self._changed:
                self._limits.discard(limit)

    def expect(self, limit: Limit, silence_s: float) -> None:
        """From now on let an exchange be silent for no longer than that."""
        with self._changed:
            limit.silence_s = min(limit.silence_s, silence_s)
            limit.alive()
            if limit.ends_s < self._next_s:
                self._changed.notify()

    def end(self, limit: Limit) -> None:
        """End one exchange before its time; its sockets are cut."""
        with self._changed:
            self._limits.discard(limit)
            limit.is_over = True
            _shut(limit.sockets)

    def cut(self) -> None:
        """End whatever waits on these sockets, and let no new one connect."""
        with self._changed:
            self._is_cut = True
            _shut(self._sockets)
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _cut_late(self) -> None:
        with self._changed:
            while not self._is_cut:
                now_s = time.monotonic()
                for limit in [each for each in self._limits if each.ends_s <= now_s]:
                    self._limits.discard(limit)
                    limit.is_over = True
                    _shut(limit.sockets)
                self._next_s = min((each.ends_s for each in self._limits), default=float("inf"))
                self._changed.wait(None if self._next_s == float("inf") else self._next_s - now_s)


class OpenExchange:
    """What another thread may do with an exchange in progress."""

    def __init__(self, wires: OpenConnections, limit: Limit) -> None:
        self._wires = wires
        self._limit = limit

    def end(self) -> None:
        """Cut it."""
        self._wires.end(self._limit)

    def expect(self, silence_s: float) -> None:
        """From now on, which is a sign of life, let it be silent for no longer than that."""
        self._wires.expect(self._limit, silence_s)


def _shut(sockets: Iterable[socket.socket]) -> None:
    for sock in list(sockets):
        with contextlib.suppress(OSError):
            # Not sock.shutdown(): on a TLS socket that also forgets the session its reader is still inside of.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _Cuttable(HTTPConnection):
    wires: ClassVar[OpenConnections]
    _shadow: socket.socket | None = None

    # As urllib3's own, but the socket is known before it connects.
    def _new_conn(self) -> socket.socket:
        try:
            found = socket.getaddrinfo(self._dns_host, self.port, type=socket.SOCK_STREAM)
        except socket.gaierror as e:
            raise NameResolutionError(self.host, self, e) from e
        error: OSError | None = None
        for family, kind, protocol, _, address in found:
            sock = socket.socket(family, kind, protocol)
            try:
                for option in (*(self.socket_options or ()), *_DEAD_PEER):
                    sock.setsockopt(*option)
                sock.settimeout(self.timeout)
                self.wires.add(sock)
                sock.connect(address)
                # The TLS handshake detaches this object from its descriptor; the shadow keeps it in reach until then.
                self._shadow = sock.dup()
                self.wires.add(self._shadow)
            except OSError as e:
                sock.close()
                error = e
            else:
                return sock
        if isinstance(error, TimeoutError):
            raise ConnectTimeoutError(
                self, f"no connection to {self.host}:{self.port} within {self.timeout} s"
            ) from error
        raise NewConnectionError(self, f"no connection to {self.host}:{self.port}: {error}") from error

    def connect(self) -> None:
        try:
            super().connect()
        finally:
            if self._shadow is not None:
                self._shadow.close()
                self._shadow = None
        if self.sock is not None:
            self.wires.add(self.sock)

    # A connection that was kept from another exchange.
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as in urllib3
        if self.sock is not None:
            self.wires.add(self.sock)
        return super().getresponse()


class _CuttableTls(_Cuttable, HTTPSConnection):
    pass


def pool_classes(wires: OpenConnections) -> dict[str, type[HTTPConnectionPool]]:
    """Return urllib3 pool classes by scheme whose connections `wires` can cut."""
    plain = type("Plain", (_Cuttable,), {"wires": wires})
    tls = type("Tls", (_CuttableTls,), {"wires": wires})
    return {
        "http": type("PlainPool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
        "https": type("TlsPool", (HTTPSConnectionPool,), {"ConnectionCls": tls}),
    }
