"""Connections that another thread can cut.

A thread that waits for the API server sleeps in the kernel: only shutdown(2) on its socket ends the wait at once. So
every socket of a transport is known here from before it connects, through the TLS handshake, until it is closed.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import weakref
from typing import ClassVar

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError


class Wires:
    """The open sockets of one transport."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._is_cut = False

    def add(self, sock: socket.socket) -> None:
        """Know a socket.

        Raises:  OSError: all was cut already.
        """
        with self._lock:
            if self._is_cut:
                raise OSError(errno.ECANCELED, "the transport is closed")
            self._sockets.add(sock)

    def cut(self) -> None:
        """End whatever waits on these sockets, and let no new one connect."""
        with self._lock:
            self._is_cut = True
            for sock in list(self._sockets):
                with contextlib.suppress(OSError):
                    # Not sock.shutdown(): on a TLS socket that also forgets the session its reader is still inside of.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _Cuttable(HTTPConnection):
    wires: ClassVar[Wires]
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
                for option in self.socket_options or ():
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


class _CuttableTls(_Cuttable, HTTPSConnection):
    pass


def pool_classes(wires: Wires) -> dict[str, type[HTTPConnectionPool]]:
    """Return urllib3 pool classes by scheme whose connections `wires` can cut."""
    plain = type("Plain", (_Cuttable,), {"wires": wires})
    tls = type("Tls", (_CuttableTls,), {"wires": wires})
    return {
        "http": type("PlainPool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
        "https": type("TlsPool", (HTTPSConnectionPool,), {"ConnectionCls": tls}),
    }
