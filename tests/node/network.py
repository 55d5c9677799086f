"""A network of this process's own, in which there is only loopback: nothing that is sent in it leaves the machine.

A guest's address exists only inside QEMU. Elsewhere what an API server sends to a kubelet there would go to the
default gateway, so control planes of guests are started in such a network alone. There the address is loopback's, and
QEMU forwards the kubelet's port of it into the guest.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

NODE_ADDRESS = "10.0.2.15"  # that QEMU's user network gives to its guest
HOST_ADDRESS = "10.0.2.2"  # as the guest sees 127.0.0.1 of QEMU's network
_SET_UP = (
    "ip link set lo up",
    f"ip address add {NODE_ADDRESS}/32 dev lo",
    # QEMU gives a connection from 127.0.0.1 to its guest as one from HOST_ADDRESS; from NODE_ADDRESS, which is what the
    # kernel would take, it would be one from the guest itself.
    f"ip route replace local {NODE_ADDRESS} dev lo table local src 127.0.0.1",
)
_CLONE_NEWNET = 0x40000000  # sched.h
_libc = ctypes.CDLL(None, use_errno=True)


class NotAlone(RuntimeError):
    """The network of this process has other interfaces than loopback."""


def enter_own_network() -> None:
    """Move this thread, and whatever it starts from now on, into a network of loopback alone; twice is harmless.

    Raises:  OSError: the kernel refuses it; only root may.
             NotAlone: there is another interface.
    """
    if interfaces() != ["lo"]:
        if _libc.unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "unshare(CLONE_NEWNET)")
        for command in _SET_UP:
            subprocess.run(command.split(), check=True)
    require_own_network()


def require_own_network() -> None:
    """Raise NotAlone unless this network has only loopback."""
    if interfaces() != ["lo"]:
        raise NotAlone(f"this network has {', '.join(interfaces())}; call enter_own_network() before")


def interfaces(pid: int | None = None) -> list[str]:
    """Return the interfaces of the calling thread's network, or of a process's."""
    place = "thread-self" if pid is None else str(pid)
    lines = Path(f"/proc/{place}/net/dev").read_text().splitlines()[2:]
    return sorted(line.partition(":")[0].strip() for line in lines)
