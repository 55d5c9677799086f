"""Whether a network interface has a link, by sysfs."""

from __future__ import annotations

import re
from pathlib import Path

from koordebpf.errors import CgroupGone, KernelFileError
from koordebpf.kernel.io.text_file import read_kernel_file

NET = Path("/sys/class/net")
# Of a name: 15 characters, without a slash, colon or space. Source: net/core/dev.c, dev_valid_name.
_NAME = re.compile(r"[^/:\s]{1,15}")
_DOWN = frozenset({"down", "lowerlayerdown", "notpresent"})


def has_link(name: str, net: Path = NET) -> bool | None:
    """Tell whether an interface of this network namespace has a link; None: that is not known here.

    It is not where there is no such interface, nor of one that stands for another, such as a veth or a VLAN: in a
    network namespace of its own a pod has an eth0, too, and that is not the node's.

    Source:  Documentation/ABI/testing/sysfs-class-net: operstate, carrier, ifindex, iflink.
    Cost:    60 µs.
    """
    if not _NAME.fullmatch(name) or name in (".", ".."):
        return None
    folder = net / name
    index, peer, state = (_read(folder / file) for file in ("ifindex", "iflink", "operstate"))
    if index is None or index != peer or state is None:
        return None
    # `unknown` is what a driver without operational states says; the carrier of one that is switched off is EINVAL.
    return state not in _DOWN and _read(folder / "carrier") != "0"


def _read(path: Path) -> str | None:
    try:
        return read_kernel_file(path).text.strip()
    except (OSError, CgroupGone, KernelFileError, ValueError):  # ValueError: a name that is no path, or no text
        return None
