"""Signals whose sums, totals and scans a test sets, in the layouts of the programs: what a `Backend` gives."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Literal

from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch, SignalHealth
from koordebpf.collect.scope import NodeScope
from koordebpf.events.layout import STALL_CAUSES, expected_offsets
from koordebpf.kernel.bpf.programs import EVERY_STALL
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, cgroup_id
from koordebpf.kernel.signals import GLOBAL_STALLS, LIMIT_STALLS, BackendName, SignalSource
from koordebpf.kube.cache.objects import ObjectMeta, Pod, PodStatus
from koordebpf.units import PAGE_BYTES
from tests.support.ticked_node import StillClock

_NO_LIMIT = (1 << 63) // PAGE_BYTES


def stall(some_ns: int = 0, *, changed_ns: int = 0, stalled: int = 0, **causes_ns: int) -> bytes:
    """Return struct koord_stall of a cgroup that waited so long for each cause, one time each."""
    size, offsets = expected_offsets("koord_stall")
    made = bytearray(size)
    for cause, total_ns in causes_ns.items():
        at = offsets[STALL_CAUSES[STALL_CAUSES.index(cause)]]
        made[at : at + 16] = (1).to_bytes(8, "little") + total_ns.to_bytes(8, "little")
    for name, value in (("some_ns", some_ns), ("changed_ts_ns", changed_ns), ("last_ts_ns", changed_ns)):
        made[offsets[name] : offsets[name] + 8] = value.to_bytes(8, "little")
    made[offsets["stalled"] : offsets["stalled"] + 4] = stalled.to_bytes(4, "little")
    return bytes(made)


def totals(**members: int) -> bytes:
    """Return struct koord_totals with these members."""
    size, offsets = expected_offsets("koord_totals")
    made = bytearray(size)
    for name, value in members.items():
        made[offsets[name] : offsets[name] + 8] = value.to_bytes(8, "little")
    return bytes(made)


def memcg(cgroup_id: int, parent_id: int, usage: int, *lru: int, limit: int = _NO_LIMIT, **more: int) -> bytes:
    """Return struct koord_memcg, in pages; `lru`: inactive and active anon, the same of files, unevictable."""
    numbers = (more.get(name, 0) for name in ("swap", "slab", "high", "max", "oom", "oom_kill"))
    row = (cgroup_id, parent_id, usage, limit, *numbers, *lru, *(0,) * (5 - len(lru)))
    return b"".join(number.to_bytes(8, "little") for number in row)


class PlayedSignals:
    """A `Backend`: `counted` are its totals, `rows` its stalls by cgroup id, `scans` what it scans next."""

    name: BackendName = "co-re"

    def __init__(self) -> None:
        self.sources = [SignalSource(each, "a test", works=True) for each in (GLOBAL_STALLS, LIMIT_STALLS, EVERY_STALL)]
        self.counted = b""
        self.rows: dict[int, bytes] = {}
        self.scans: list[bytes] | None = None  # None: it cannot scan
        self.missed = 0
        self.lost: list[SignalSource] = []
        self.records: list[bytes] = []
        self.forgotten: list[int] = []
        self.reads = 0  # of the stalls

    def fileno(self) -> int | None:
        return None

    def read(self) -> list[bytes]:
        records, self.records = self.records, []
        return records

    def totals(self) -> bytes:
        return self.counted

    def stalls(self) -> list[tuple[bytes, bytes]]:
        self.reads += 1
        return [(number.to_bytes(8, "little"), row) for number, row in self.rows.items()]

    def forget(self, cgroup_id: int) -> None:
        self.forgotten.append(cgroup_id)
        self.rows.pop(cgroup_id, None)

    @property
    def can_scan(self) -> bool:
        return self.scans is not None

    def scan(self) -> memoryview:
        return self.scanned()

    def scanned(self) -> memoryview:
        return memoryview(b"".join(self.scans or []))

    def scan_missed(self) -> int:
        return self.missed

    def send_kinds(self, kinds: int) -> None:
        """All are sent."""

    def send_only(self, cgroup_ids: Collection[int] | None) -> None:
        """All are sent."""

    def lost_probes(self) -> list[SignalSource]:
        return self.lost

    def close(self) -> None:
        """Nothing is attached."""


class StalledNode:
    """A machine on a tree of cgroups with two pods, `web` with two containers and `batch` with one; signals played."""

    def __init__(self, root: Path, version: Literal[1, 2] = 1, kind: Literal["machine", "cgroup"] = "machine") -> None:
        self.root, self.ids = root, dict[str, int]()
        for path in ("", "kubepods", "kubepods/podweb", "kubepods/podbatch"):
            self.make(path)
        for path in ("kubepods/podweb/" + "a" * 64, "kubepods/podweb/" + "b" * 64, "kubepods/podbatch/" + "c" * 64):
            self.make(path)
        self.clock, self.signals = StillClock(), PlayedSignals()
        scope = NodeScope(kind, MemoryHierarchy(version, root, 0), root, cgroup_id(root))
        self.watch = NodeWatch(scope, None, 0, backend="files")
        self.watch.signals.close()
        self.watch.signals = self.signals
        self.watch.health = SignalHealth(self.signals)
        self.pods = tuple(
            Pod(ObjectMeta(uid, "team", uid, labels={"koordinator.sh/qosClass": qos}), status=PodStatus("Running"))
            for uid, qos in (("web", "LS"), ("batch", "BE"))
        )
        self.watch.index.set_pods(self.pods)
        self.collector = MemoryCollector(scope, self.signals, self.watch.index, self.clock)

    def make(self, path: str) -> int:
        """Make a cgroup with one task and without memory; return its id."""
        directory = self.root / path
        directory.mkdir(exist_ok=True)
        for name, text in _EMPTY.items():
            (directory / name).write_text(text)
        self.ids[path] = cgroup_id(directory)
        return self.ids[path]

    def path(self, uid: str, container: str = "") -> str:
        """Return the path of a pod, or of its container of this letter."""
        return f"kubepods/pod{uid}/{container * 64}".rstrip("/")

    def id(self, uid: str, container: str = "") -> int:
        """Return its cgroup's id."""
        return self.ids[self.path(uid, container)]

    def close(self) -> None:
        self.collector.close()
        self.watch.close()


_STAT = "total_inactive_anon 0\ntotal_active_anon 0\ntotal_inactive_file 0\ntotal_active_file 0\ntotal_unevictable 0\n"
_EMPTY = {
    "memory.stat": _STAT + _STAT.replace("total_", ""),
    "memory.usage_in_bytes": "0\n",
    "memory.current": "0\n",
    "memory.limit_in_bytes": "9223372036854771712\n",
    "memory.max": "max\n",
    "memory.failcnt": "0\n",
    "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
    "cgroup.procs": "",
    "tasks": "",
}
