"""A value and open files, from one process to another over a Unix socket (SCM_RIGHTS).

The receiver owns the files: they stay open when the sender exits.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

_MAX_FDS = 253  # SCM_MAX_FD, include/net/scm.h
_MAX_BYTES = 1 << 20
_FD_BYTES = array.array("i").itemsize


def channel() -> tuple[socket.socket, socket.socket]:
    """Return the two ends; each message arrives whole, and an end that is closed reads as EOFError."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(end: socket.socket, value: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send a value that JSON can hold, and then the files."""
    end.send(json.dumps({"value": value, "fds": len(fds)}).encode())
    for at in range(0, len(fds), _MAX_FDS):
        batch = array.array("i", fds[at : at + _MAX_FDS])
        end.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, batch)])


def receive(end: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return what the other end sent; the files are closed on exec.

    Raises:  EOFError: the other end is closed, or closed half-way. TimeoutError: as the socket's timeout says. What had
             arrived is closed then.
    """
    head = end.recv(_MAX_BYTES)
    if not head:
        raise EOFError("nothing was sent")
    message = json.loads(head)
    fds: list[int] = []
    try:
        while len(fds) < message["fds"]:
            space = socket.CMSG_SPACE(_MAX_FDS * _FD_BYTES)
            data, ancillary, flags, _ = end.recvmsg(1, space, socket.MSG_CMSG_CLOEXEC)
            arrived = array.array("i")
            for _, _, payload in ancillary:
                arrived.frombytes(payload[: len(payload) // _FD_BYTES * _FD_BYTES])
            fds.extend(arrived)
            if not data or not arrived or flags & socket.MSG_CTRUNC:
                raise EOFError(f"{len(fds)} of {message['fds']} files arrived")
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return message["value"], fds
