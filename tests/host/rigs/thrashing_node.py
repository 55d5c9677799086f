"""A node that is above its threshold and thrashes, for as long as its best-effort pod holds its memory."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, cgroup_id
from tests.contract.apiserver import until
from tests.host.rigs.live_node import LiveNode
from tests.support.loads.workloads import BUILD, Holder
from tests.support.nodes import MIB, NodeCgroup

NODE_MIB = 256
WIDE_MIB = 300  # of a node whose pods have the limit in its place; HELD_MIB are 63 % of it
THRESHOLD_PERCENT = 60
HELD_MIB = 190  # 74 %; 66 MiB are left for files of 128
FILE_MIB = 128
EARLY_MIB = 40  # of what is held: who has none is no victim
_WALK_S = 120
_HOLD_S = 600  # an emulated machine takes a minute to start an agent
# For the multi-generational LRU pages without recency are none to wait for: tests/workloads/thrash.c.
_RECENT = ("recent",) if Path("/sys/kernel/mm/lru_gen").exists() else ()

# Reclaims a part of a cgroup's memory. cgroup v1 can only be asked for all of it, so that is broken off by a signal.
_TAKER = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
v2 = folder / "memory.reclaim"
def enough(*_):
    raise InterruptedError
signal.signal(signal.SIGALRM, enough)
while True:
    try:
        if v2.exists():
            v2.write_text("4M")
        else:
            signal.setitimer(signal.ITIMER_REAL, 0.002)
            (folder / "memory.force_empty").write_text("0")
    except OSError:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(0.005)
"""


class WalkedNode(LiveNode):
    """A node with a pod that walks through files, and one that holds memory.

    Args:
        limit_bytes: of the node.
        threshold_percent: of it.
    """

    def __init__(self, hierarchy: MemoryHierarchy, limit_bytes: int, threshold_percent: int) -> None:
        self.holders: list[Holder] = []
        self.walkers: list[subprocess.Popen[bytes]] = []
        self.thresholds = (threshold_percent, threshold_percent - 5)
        super().__init__(NodeCgroup(hierarchy.mount_point, hierarchy.version, limit_bytes), (), is_own=True)

    def holds(self, container: Path, mib: int, hold_s: int, *, waits: bool = True) -> Holder:
        """Have one more process of a pod hold memory."""
        self.holders.append(Holder(container, "anon", mib, "--hold", str(hold_s), waits=waits))
        self._ending.callback(self.holders[-1].stop)
        return self.holders[-1]


class ThrashingNode(WalkedNode):
    """Calm at first: the pod holds little. `grows` makes the node thrash, with no OOM kill ever.

    Args:
        scale: so many times as large, with all that is in it.
        ls_limit_bytes: of the pod that walks through files.
    """

    def __init__(self, hierarchy: MemoryHierarchy, scale: int = 1, ls_limit_bytes: int | None = None) -> None:
        self._scale, self._ls_limit_bytes = scale, ls_limit_bytes
        self._takers: list[subprocess.Popen[bytes]] = []
        super().__init__(hierarchy, scale * NODE_MIB * MIB, THRESHOLD_PERCENT)

    def fill(self) -> None:
        (self.be,) = self.add_pod("be")
        (self.ls,) = self.add_pod("ls", be=False, limit_bytes=self._ls_limit_bytes)
        self.holds(self.be, self._scale * EARLY_MIB, _HOLD_S)

    @property
    def victim_id(self) -> int:
        return cgroup_id(self.node.pod_paths["be"])

    def starts_walking(self) -> None:
        """Have a latency-sensitive pod read files, which fit as long as the other pod is small."""
        for _ in range(2):
            self.walks(self._scale * FILE_MIB // 2)
        until(lambda: self.node.usage_bytes() > self._scale * (EARLY_MIB + FILE_MIB) * MIB, "files in memory")

    def walks(self, mib: int, container: Path | None = None) -> None:
        """Have one more process of that pod, or of another one, read a file, again and again."""
        procs = (container or self.ls) / "cgroup.procs"
        command = (BUILD / "thrash", "/var/tmp", mib, _WALK_S, procs, *_RECENT)
        self.walkers.append(self.spawn(*command, stdout=subprocess.DEVNULL))

    def floods(self, mib: int) -> None:
        """Have one more process of that pod read a file with read-ahead, whose pages are charged in large folios."""
        command = (BUILD / "cacheflood", "/var/tmp", mib, _WALK_S, self.ls / "cgroup.procs")
        self.walkers.append(self.spawn(*command, stdout=subprocess.DEVNULL))

    def moves_limit(self, *below: str, mib: int = NODE_MIB) -> Path:
        """Have a directory of the node limit its pods, and the node itself limit less; return the directory."""
        directory = self.node.path.joinpath(*below)
        self.node.set_limit(self.node.path, WIDE_MIB * MIB)
        self.node.set_limit(directory, mib * MIB)
        return directory

    def loses_page_cache(self) -> None:
        """Have a process that is not of the node take page cache of that pod, again and again."""
        self._takers.append(self.spawn(sys.executable, "-c", _TAKER, self.ls.parent))

    def keeps_page_cache(self) -> None:
        """End what takes it."""
        while self._takers:
            self.end(self._takers.pop())

    def grows(self, processes: int = 1) -> None:
        """Have the best-effort pod hold so much that the files do not fit any more."""
        each = self._scale * (HELD_MIB - EARLY_MIB) // processes
        for _ in range(processes):
            self.holds(self.be, each, _HOLD_S, waits=False)

    def times_full(self, cgroup: Path | None = None) -> int:
        """Return how often a charge failed at its limit, or at that of a cgroup below it."""
        folder = cgroup or self.node.path
        if (v1 := folder / "memory.failcnt").exists():
            return int(v1.read_text())
        events = dict(line.split() for line in (folder / "memory.events.local").read_text().splitlines())
        return int(events["max"])

    @property
    def is_victim_alive(self) -> bool:
        return any(each.process.poll() is None for each in self.holders)

    def dies(self, timeout_s: float = 20) -> float:
        """Wait until every process of the best-effort pod is dead; return after how long."""
        started = time.monotonic()
        until(lambda: not self.is_victim_alive, "the victim's end", timeout_s)
        return time.monotonic() - started

    @property
    def has_survived(self) -> bool:
        """Whether no other process was killed, by whomever."""
        return self.node.oom_kills() == 0 and all(each.poll() is None for each in self.walkers)
