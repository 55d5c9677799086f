"""The maps that user space shares with the programs, whichever backend made them: counters, sums, settings, filters."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Mapping

from koordebpf.errors import SupportError
from koordebpf.kernel.bpf.libbpf import Map
from koordebpf.kernel.cgroup.hierarchy import cgroup_id
from koordebpf.kernel.signals import SignalRequest
from koordebpf.units import PAGE_SHIFT

_FIRST = bytes(4)  # key of an array's only element
_SETTINGS = struct.Struct("<QQ10I")
_LEVEL_UNKNOWN = 0xFFFFFFFF  # koord_events.h
_ROOT_CGROUP_ID = 1  # of a hierarchy's root, fs/kernfs/mount.c
_KINDS_AT = 28  # offsets in koord_settings
_ONLY_WANTED_AT = 32
_EPOCH_AT = 44
_MISSED_AT, _NODE_STALLED_AT, _NODE_EPOCH_AT = 128, 160, 168  # in koord_totals
_LOST_ENDS_AT = 120
_STALLED_AT = 984  # in koord_stall; its epoch follows
_MISSED = struct.Struct("<2Q")
# No task waits so long for memory: an end that was lost, and whose thread never waited again.
_FORGOTTEN_NS = 600 * 10**9
# enum koord_kind as bits: reclaim, oom_kill, cgroup mkdir, rmdir, rename. What the agent lives on.
NEEDED_KINDS = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5


class Element:
    """The only element of an array: in memory where the kernel maps it (since v5.5), else by system calls."""

    def __init__(self, array: Map, *, writable: bool = False) -> None:
        self._array = array
        self._memory: mmap.mmap | None = None
        try:
            self._memory = array.memory(writable=writable)
        except OSError:  # EINVAL: an array without BPF_F_MMAPABLE, or a kernel without mmap of maps
            if array.lookup(_FIRST) is None:
                raise

    def read(self) -> bytes:
        """Return the value as it is now."""
        if self._memory is not None:
            return self._memory[: self._array.value_bytes]
        return self._array.lookup(_FIRST) or b""

    def write(self, at: int, data: bytes) -> None:
        """Put `data` at an offset. Without memory the whole value is written, also what a program changed meanwhile."""
        if self._memory is not None:
            self._memory[at : at + len(data)] = data
            return
        value = bytearray(self.read())
        value[at : at + len(data)] = data
        self._array.update(_FIRST, bytes(value))

    def close(self) -> None:
        """Give the memory back; twice is harmless."""
        if self._memory is not None:
            self._memory.close()


class SignalMaps:
    """What `Backend` reads of the programs' maps and writes to them. The caller owns the fds.

    Args:
        maps: by name; at least `totals`, `settings` and `stalls`.

    `missed` are the runs of programs that the kernel skipped, all and those that report mkdir: part of the totals.
    """

    def __init__(self, maps: Mapping[str, Map]) -> None:
        self._totals = Element(maps["totals"])
        self.settings = Element(maps["settings"], writable=True)
        self._stalls = maps["stalls"]
        self._wanted = maps.get("wanted")
        self._start = maps.get("start")
        self._epoch = 0
        self.missed = 0, 0

    def listen_to(self, request: SignalRequest) -> None:
        """Fill in the settings; before the programs attach, or for another node while they run."""
        numbers = (
            request.min_stall_ns,
            request.node_cgroup_id or 0,
            request.hierarchy_id,
            _node_level(request),
            numa_node_ids(),
            NEEDED_KINDS,
        )
        self.settings.write(0, _SETTINGS.pack(*numbers, *(0,) * 3, self._epoch, PAGE_SHIFT, 0))

    def totals(self) -> bytes:
        """Return struct koord_totals as it is now."""
        totals = bytearray(self._totals.read())
        _MISSED.pack_into(totals, _MISSED_AT, *self.missed)
        if int.from_bytes(totals[_NODE_EPOCH_AT : _NODE_EPOCH_AT + 8], "little") != self._epoch:
            totals[_NODE_STALLED_AT : _NODE_STALLED_AT + 8] = bytes(8)
        return bytes(totals)

    def lost_ends(self) -> int:
        """Return how many ends of stalls the programs know that they never saw."""
        return int.from_bytes(self._totals.read()[_LOST_ENDS_AT : _LOST_ENDS_AT + 8], "little")

    def stalls(self) -> list[tuple[bytes, bytes]]:
        """Return key and value of every cgroup that stalled since load."""
        if not self._epoch:
            return list(self._stalls.items())
        epoch = self._epoch.to_bytes(4, "little")
        return [(key, _of_this(value, epoch)) for key, value in self._stalls.items()]

    def restart_epoch(self) -> None:
        """Raise the epoch: a task that is stalled now is not counted before it waits again."""
        self._epoch += 1
        self.settings.write(_EPOCH_AT, self._epoch.to_bytes(4, "little"))

    def expire_stalls(self, now_ns: int) -> None:
        """Delete stalls that began so long ago that their end must have been lost."""
        if self._start is None:
            return
        old = [
            key
            for key, value in self._start.items(key_bytes=4)
            if now_ns - int.from_bytes(value[:8], "little") > _FORGOTTEN_NS
        ]
        for key in old:
            self._start.delete(key)

    def forget(self, cgroup_id: int) -> None:
        """Free the stall sums of a cgroup that is gone."""
        self._stalls.delete(cgroup_id.to_bytes(8, "little"))

    def send_kinds(self, kinds: int) -> None:
        """Send the records of these kinds, bit 1 << enum koord_kind for each; all are counted."""
        self.settings.write(_KINDS_AT, kinds.to_bytes(4, "little"))

    def send_only(self, cgroup_ids: Collection[int] | None) -> None:
        """Send only records of these cgroups; None: of all. All are counted.

        Raises:  SupportError: more cgroups than the map holds.
        """
        if self._wanted is None:
            return
        keep = {cgroup_id.to_bytes(8, "little") for cgroup_id in cgroup_ids or ()}
        there = {key for key, _ in self._wanted.items()}
        for key in there - keep:
            self._wanted.delete(key)
        for key in keep - there:
            if not self._wanted.update(key, b"\1".ljust(self._wanted.value_bytes, b"\0")):
                raise SupportError(
                    "filter by cgroup",
                    f"{len(keep)} cgroups, and the kernel's map holds {self._wanted.max_entries}",
                    "Name fewer.",
                )
        self.settings.write(_ONLY_WANTED_AT, int(cgroup_ids is not None).to_bytes(4, "little"))

    def close(self) -> None:
        """Give the memory back; twice is harmless."""
        self._totals.close()
        self.settings.close()


# Who was counted as stalled in an older epoch may have left unseen.
def _of_this(value: bytes, epoch: bytes) -> bytes:
    return value if value[_STALLED_AT + 4 :] == epoch else value[:_STALLED_AT] + bytes(4) + epoch


def _node_level(request: SignalRequest) -> int:
    # In a cgroup namespace the mount point is some cgroup further down, and the programs find the level themselves.
    is_root = cgroup_id(request.mount_point) == _ROOT_CGROUP_ID
    return request.node_level if is_root else _LEVEL_UNKNOWN


def numa_node_ids() -> int:
    """Return how many NUMA node ids are possible on this machine."""
    # struct mem_cgroup.nodeinfo has one entry for each possible node id, so the last possible one bounds the walk.
    try:
        with open("/sys/devices/system/node/possible") as file:  # noqa: PTH123 - one small read at start
            return int(file.read().strip().replace("-", ",").split(",")[-1]) + 1
    except (OSError, ValueError):
        return 1
