"""A client that sends requests at a fixed rate and writes how long each took, from when it was due.

Run as a script, so that it imports nothing of the project: `paced.py KIND RATE SECONDS OUT [ARGUMENT]…`. OUT gets one
double for each request, in ms. One that was not answered 5 s after the end has the time until then, and its sign is
minus. What is late because an earlier one was is counted as late: no coordinated omission.
"""

from __future__ import annotations

import array
import contextlib
import os
import random
import socket
import sqlite3
import sys
import time
from collections.abc import Callable

_GIVE_UP_S = 5.0
_ROWS_EACH = 4  # of a transaction
Request = Callable[[], object]


def redis(port: str, keys: str) -> Request:
    """Four of five requests read a random key, one writes it."""
    connection, last = _connect(port), int(keys)
    value = b"v" * 2048

    def request() -> None:
        key = b"key:%d" % random.randrange(last)
        if random.random() < 0.8:
            connection.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key))
        else:
            connection.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$2048\r\n%s\r\n" % (len(key), key, value))
        _bulk(connection)

    return request


def fill_redis(port: str, keys: str) -> None:
    """Write every key."""
    connection = _connect(port)
    value = b"v" * 2048
    for start in range(0, int(keys), 500):
        names = [b"key:%d" % number for number in range(start, start + 500)]
        connection.sendall(
            b"".join(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$2048\r\n%s\r\n" % (len(k), k, value) for k in names)
        )
        left = 500 * len(b"+OK\r\n")
        while left:
            left -= len(connection.recv(left))


def http(port: str, path: str) -> Request:
    """Get one path again and again on one connection."""
    connection = _connect(port)
    text = f"GET {path} HTTP/1.1\r\nHost: node\r\n\r\n".encode()

    def request() -> None:
        connection.sendall(text)
        got = b""
        while b"\r\n\r\n" not in got:
            got += _some(connection)
        head, _, body = got.partition(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        left = int(length.split(b":")[1]) - len(body)
        while left > 0:
            left -= len(_some(connection))

    return request


def sqlite(path: str, rows: str) -> Request:
    """Nine of ten transactions read rows at random places, one changes a row and waits for the disk."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA synchronous=FULL")
    database.execute("PRAGMA cache_size=-8192")
    last = int(rows)

    def request() -> None:
        if random.random() < 0.9:
            for _ in range(_ROWS_EACH):
                database.execute("SELECT body FROM t WHERE id=?", (random.randrange(last),)).fetchone()
        else:
            database.execute("UPDATE t SET n=n+1 WHERE id=?", (random.randrange(last),))

    return request


def fill_sqlite(path: str, rows: str) -> None:
    """Make a table of so many rows of 2 KiB."""
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, body BLOB)")
    every = range(int(rows))
    database.executemany("INSERT INTO t VALUES (?, 0, ?)", ((number, os.urandom(2048)) for number in every))
    database.commit()
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


KINDS: dict[str, Callable[..., Request]] = {"redis": redis, "http": http, "sqlite": sqlite}
FILLS: dict[str, Callable[..., None]] = {"fill_redis": fill_redis, "fill_sqlite": fill_sqlite}


def run(request: Request, rate: float, seconds: float) -> array.array[float]:
    """Send for so long; return what each took, in ms."""
    took = array.array("d")
    start = time.monotonic()
    number = 0
    while (due := start + number / rate) < start + seconds:
        if time.monotonic() > start + seconds + _GIVE_UP_S:
            break
        while (left := due - time.monotonic()) > 0:
            time.sleep(left)
        try:
            request()
        except OSError:
            break
        took.append(1e3 * (time.monotonic() - due))
        number += 1
    now = time.monotonic()
    while (due := start + number / rate) < start + seconds:
        took.append(-1e3 * max(now - due, 1e-6))
        number += 1
    return took


def _connect(port: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(port)), timeout=_GIVE_UP_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _some(connection: socket.socket) -> bytes:
    if not (got := connection.recv(65536)):
        raise ConnectionResetError
    return got


def _bulk(connection: socket.socket) -> None:
    got = _some(connection)
    if got[:1] == b"$":
        while b"\r\n" not in got:
            got += _some(connection)
        head, _, body = got.partition(b"\r\n")
        left = int(head[1:]) + 2 - len(body)
        while left > 0:
            left -= len(_some(connection))
        return
    while not got.endswith(b"\r\n"):
        got += _some(connection)


def main(arguments: list[str]) -> None:
    """Do what the arguments say."""
    kind, *rest = arguments
    if kind in FILLS:
        FILLS[kind](*rest)
        return
    rate, seconds, out, *more = rest
    if kind != "sqlite":
        # The client stands for another machine: it does not wait for the CPUs of this one.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    took = run(KINDS[kind](*more), float(rate), float(seconds))
    with open(out, "wb") as file:  # noqa: PTH123 - as few imports as can be
        took.tofile(file)


if __name__ == "__main__":
    main(sys.argv[1:])
