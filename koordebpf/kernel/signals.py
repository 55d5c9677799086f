"""What every backend gives, BPF programs or files behind it, and what its signals are worth on this host.

The agent knows no more of a backend than this. `doctor`, readiness and every decision show what the signals are worth.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal, Protocol

import msgspec

StallQuality = Literal["timed", "pressure", "counted", "none"]
LifecycleQuality = Literal["traced", "watched", "rescanned"]
ScanQuality = Literal["one pass", "files"]
# The signals that quality rests on, as every backend names them in its sources.
GLOBAL_STALLS = "global reclaim stalls"
LIMIT_STALLS = "memcg-limit reclaim stalls"
CGROUP_LIFECYCLE = "cgroup births and deaths"
_STALLS: dict[StallQuality, str] = {
    "timed": "each stall is timed",
    "pressure": "stalls are summed up from memory.pressure",
    "counted": "stalls of pods are not timed, hits of limits are counted",
    "none": "stalls are not seen",
}
_LIFECYCLE: dict[LifecycleQuality, str] = {
    "traced": "cgroup creation is traced",
    "watched": "cgroup creation is reported by inotify",
    "rescanned": "new cgroups are found by rescans, up to a second late",
}
_SCAN: dict[ScanQuality, str] = {
    "one pass": "all cgroups are measured in one pass",
    "files": "cgroups are measured by their files",
}
BackendName = Literal["co-re", "bcc", "files"]
# Called with the layout of each structure as the programs have it; raises SupportError on drift.
LayoutCheck = Callable[[str, tuple[int, Mapping[str, int]]], None]
SUMS_ONLY_NS = 1 << 62  # of `min_stall_ns`: no stall is as long, so that none is sent


class SignalQuality(msgspec.Struct, frozen=True):
    """How good the signals are that a decision rests on.

    `stalls`  timed: each by a program. pressure: as time in which some task of a cgroup stalled, with refaults and
              swap-ins in it. counted: how often a limit was hit. none: not seen.
    `births`  traced: by programs. watched: by inotify. rescanned: found up to a second late.
    `scan`    one pass: a BPF iterator. files: one file after the other.
    """

    backend: BackendName
    stalls: StallQuality
    births: LifecycleQuality
    scan: ScanQuality
    sentence: str

    @property
    def short(self) -> str:
        """For the end of another sentence."""
        return f"signals: {self.backend}, stalls {self.stalls}, births {self.births}"


def quality_of(backend: Backend, lost: Iterable[SignalSource] = (), missed_runs: int = 0) -> SignalQuality:
    """Return the quality of what a backend gives now.

    Args:
        backend: what is asked.
        lost: the sources that worked at its start only.
        missed_runs: of its programs, which the kernel passed over since.
    """
    works = {source.signal: source.works for source in (*backend.sources, *lost)}
    is_files = backend.name == "files"
    stalls: StallQuality
    if works.get(GLOBAL_STALLS) and works.get(LIMIT_STALLS):
        stalls = "pressure" if is_files else "timed"
    else:
        stalls = "counted" if is_files else "none"
    births: LifecycleQuality = ("watched" if is_files else "traced") if works.get(CGROUP_LIFECYCLE) else "rescanned"
    scan: ScanQuality = "one pass" if backend.can_scan else "files"
    sentence = f"backend {backend.name}: {_STALLS[stalls]}, {_LIFECYCLE[births]}, {_SCAN[scan]}"
    if missed_runs:
        sentence += f"; the kernel passed over {missed_runs} runs of programs"
    return SignalQuality(backend.name, stalls, births, scan, sentence)


class SignalSource(msgspec.Struct, frozen=True):
    """How one signal is obtained on this host, or why it is not."""

    signal: str
    how: str
    works: bool
    reason: str = ""
    remedy: str = ""
    cost: str = ""  # what is lost while it does not work


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
