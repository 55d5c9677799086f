"""Clients that mean no good: they hold connections, send a byte now and then, or connect thousands of times.

Those of many connections are processes of their own, with as many descriptors as they need: what is under attack may
live in the process of the test.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from tests.patience import patience

SOURCE = "127.0.0.2"  # not the address that probes come from

_RAISE = """
import resource, socket, sys, time
port, count, source = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
wanted = min(hard, 4096) if hard != resource.RLIM_INFINITY else 4096
resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
"""
_HOLD = f"""{_RAISE}
held = []
for _ in range(count):
    client = socket.socket()
    client.settimeout(5)
    client.bind((source, 0))
    try:
        client.connect(("127.0.0.1", port))
    except OSError:
        continue
    held.append(client)
print(len(held), flush=True)
time.sleep(600)
"""
_FLOOD = f"""{_RAISE}
print(0, flush=True)
for _ in range(count):
    client = socket.socket()
    client.settimeout(1)
    try:
        client.bind((source, 0))
        client.connect(("127.0.0.1", port))
        client.send(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
    except OSError:
        pass
    client.close()
"""


def connected(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=patience(10), source_address=(source, 0))


class Slow:
    """So many connections, each of which sends one byte of a header at a time; a closed one is opened anew."""

    def __init__(self, port: int, clients: int, *, every_s: float, source: str = SOURCE) -> None:
        self._port = port
        self._every_s = every_s
        self._source = source
        self._clients = [connected(port, source) for _ in range(clients)]
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._is_over.wait(self._every_s):
            for n, client in enumerate(self._clients):
                try:
                    client.sendall(b"a")
                except OSError:
                    client.close()
                    with contextlib.suppress(OSError):
                        self._clients[n] = connected(self._port, self._source)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        for client in self._clients:
            client.close()


@contextlib.contextmanager
def _process(program: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def holds(port: int, count: int, source: str = SOURCE) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Keep so many connections open that send nothing; entered once all were opened."""
    return _process(_HOLD, port, count, source)


def floods(port: int, count: int, source: str = SOURCE) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Open and close so many connections, one after the other, with a request each; the process ends then."""
    return _process(_FLOOD, port, count, source)
