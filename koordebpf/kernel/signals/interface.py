"""What every backend gives, BPF programs or files behind it. The agent knows no more of them than this."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Literal, Protocol

import msgspec

BackendName = Literal["co-re", "bcc", "files"]
# Called with the layout of each structure as the programs have it; raises SupportError on drift.
LayoutCheck = Callable[[str, tuple[int, Mapping[str, int]]], None]


class SignalSource(msgspec.Struct, frozen=True):
    """How one signal is obtained on this host, or why it is not."""

    signal: str
    how: str
    works: bool
    reason: str = ""
    remedy: str = ""
    cost: str = ""  # what is lost while it does not work


SUMS_ONLY_NS = 1 << 62  # of `min_stall_ns`: no stall is as long, so that none is sent


class SignalRequest(msgspec.Struct, frozen=True):
    """Which node is listened to, and for what."""

    hierarchy_version: int  # of the memory controller: cgroup 1 or 2
    hierarchy_id: int  # of the memory controller's hierarchy in /proc/cgroups; 0 on cgroup v2
    mount_point: Path
    root: Path  # the node's cgroup, or the mount point: scans start here
    node_cgroup_id: int | None  # the cgroup that is the node; None: the machine
    node_level: int = 0  # depth of `root` below the mount point
    min_stall_ns: int = 0  # shorter stalls are counted but not sent
    measures: bool = True  # False: only listens, so that the scan need not be loaded


class Backend(Protocol):
    """A stream of records and a set of counters, closed by `close`.

    Records and values are bytes in the layouts of bpf/include/koord_events.h, which `koordebpf.events` decodes.
    """

    name: BackendName
    sources: list[SignalSource]

    def fileno(self) -> int | None:
        """Return an fd that is readable (EPOLLIN) when `read` has something; None: there is nothing to wait for."""

    def read(self) -> list[bytes]:
        """Return the records that are there, oldest first, a bounded number; the fd stays readable; never waits."""

    def totals(self) -> bytes:
        """Return struct koord_totals as it is now; empty where nothing is counted."""

    def stalls(self) -> list[tuple[bytes, bytes]]:
        """Return cgroup id and struct koord_stall of every cgroup that stalled."""

    def forget(self, cgroup_id: int) -> None:
        """Free what is kept of a cgroup that is gone."""

    @property
    def can_scan(self) -> bool:
        """Whether `scan` works here; else the cgroups' files are read one by one."""

    def scan(self) -> memoryview:
        """Return whole struct koord_memcg rows, one for each memory cgroup below the root, parents first."""

    def scanned(self) -> memoryview:
        """Return the rows of the last scan once more."""

    def scan_missed(self) -> int:
        """Return how many cgroups the last scan could not hold."""

    def send_kinds(self, kinds: int) -> None:
        """Send the records of these kinds, bit 1 << enum koord_kind for each; all are counted."""

    def send_only(self, cgroup_ids: Collection[int] | None) -> None:
        """Send only records of these cgroups; None: of all. mkdir, rmdir and rename always come; all are counted."""

    def lost_probes(self) -> list[SignalSource]:
        """Return the sources that worked at start and do not any more, each with its reason."""

    def close(self) -> None:
        """Detach everything; twice is harmless."""
