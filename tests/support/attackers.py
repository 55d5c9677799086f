"""Clients that mean no good: they hold connections, send a byte now and then, or connect thousands of times.

Those of many connections are processes of their own, with as many descriptors as they need: what is under attack may
live in the process of the test.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

from tests.support.patience import patience

SOURCE = "127.0.0.2"  # not the address that probes come from

_RAISE = """
import os, resource, socket, sys, time
os.setpriority(os.PRIO_PROCESS, 0, 0)  # not as high as that of a benchmark's loop
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
for n in range(count):
    client = socket.socket()
    client.settimeout(1)
    try:
        client.bind((source.replace("*", str(n % 250 + 2)), 0))
        client.connect(("127.0.0.1", port))
        client.send(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
    except OSError:
        pass
    client.close()
"""

_DRIP = f"""{_RAISE}
every_s = float(sys.argv[4])
def opened():
    client = socket.socket()
    client.settimeout(5)
    client.bind((source, 0))
    client.connect(("127.0.0.1", port))
    client.send(b"GET /healthz HTTP/1.1\\r\\nX: ")
    return client
held = [None] * count
for turn in range(100_000):
    for n, client in enumerate(held):
        try:
            if client is None:
                held[n] = opened()
            else:
                client.send(b"a")
        except OSError:
            if client is not None:
                client.close()
            held[n] = None
    if turn == 0:
        print(sum(client is not None for client in held), flush=True)
    time.sleep(every_s)
"""


def connected(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=patience(10), source_address=(source, 0))


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


def drips(
    port: int, count: int, every_s: float, source: str = SOURCE
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Hold so many connections, each of which sends one byte of a header at a time; a closed one is opened again."""
    return _process(_DRIP, port, count, source, every_s)


def floods(port: int, count: int, source: str = SOURCE) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Open and close so many connections, one after the other, with a request each; the process ends then.

    A `*` in `source` is another number for each of 250 connections.
    """
    return _process(_FLOOD, port, count, source)
