"""What the strategy is set by, what is measured for it, and what it remembers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class WeightSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When best-effort pods weigh less, and how much.

    `busy_tasks` run or wait, from which on they do. Why 8: two a CPU of a small node.
    `shares`     cpu.shares of each of them then. Why 4: twice the least.
    `load_file`  in the form of /proc/loadavg. Why: the kernel's own; a node that is a cgroup may have another one.
    """

    busy_tasks: int = 8
    shares: int = 4
    load_file: str = "/proc/loadavg"


class LoadMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The tasks that run or wait now, and the directories of best-effort pods below the mount, by UID."""

    tasks: int
    paths: Mapping[str, str] = {}


class WeightState(msgspec.Struct, frozen=True):
    """How many rounds there were in which best-effort pods weighed less."""

    rounds: int = 0
