"""Ports of loopback for servers that start later, or come back."""

from __future__ import annotations

import contextlib
import random
import socket

# Below those that the kernel gives to who asks for any: a client may get one of these meanwhile, and one that knocks
# where no server listens may get the very port, and answer itself.
_RANGE = range(20000, 32768)


def free_ports(count: int) -> list[int]:
    """Return ports without a listener; they are found together, so that they differ."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            port = random.choice(_RANGE)
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
    return found


def free_port() -> int:
    """Return one."""
    return free_ports(1)[0]
