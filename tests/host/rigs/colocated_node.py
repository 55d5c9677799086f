"""A node on which best-effort pods make latency-sensitive ones wait for memory, and use all CPU that they get."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.host.rigs.live_node import BURN, LiveNode
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup

THRESHOLD, LOWER = 80, 65
_LS, _BE = ("checkout", "search"), ("etl-nightly", "train-resnet", "crawler", "batch-join", "log-compact")
_BATCH = {"kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": f"{600 * MIB}"}
_NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node"},
    "status": {"allocatable": {"cpu": "2", **_BATCH}},
}
_FLOOD = 'echo $$ >"$2"; exec dd if="$1" of=/dev/null bs=1M'


class ColocatedNode(LiveNode):
    """A node of 1 GiB. `checkout` takes memory again and again, `etl-nightly` fills what is free with page cache.

    Args:
        hierarchy: where its cgroups are made.
        folder: for a file that etl-nightly reads; it has no blocks.
        mib: the node's size; what its pods take follows it.
    """

    thresholds = (THRESHOLD, LOWER)

    def __init__(self, hierarchy: MemoryHierarchy, folder: Path, mib: int = 1024) -> None:
        self._mib = mib
        self._sparse = folder / "table.parquet"
        self._busy: list[subprocess.Popen[bytes]] = []
        super().__init__(NodeCgroup(hierarchy.mount_point, hierarchy.version, mib * MIB), is_own=True)

    def fill(self) -> None:
        self._places = {name: self.add_pod(name, be=False)[0] for name in _LS}
        self._places |= {name: self.add_pod(name, priority=5000 + n)[0] for n, name in enumerate(_BE)}
        with self._sparse.open("wb") as made:
            made.truncate(1 << 40)

    def manifest(self, folder: Path) -> Path:
        """Write its pods, its Node with batch resources, and a NodeSLO that evicts and suppresses."""
        suppress = {"cpuSuppressThresholdPercent": 75, "cpuSuppressPolicy": "cfsQuota"}
        return self.write_manifest(folder, [_NODE], resourceUsedThresholdWithBE=suppress)

    def starts(self) -> None:
        """Start what works all the time."""
        self._hog("search", self._mib // 8, 60)
        self._hog("log-compact", self._mib // 20, 3)
        self._hog("train-resnet", self._mib // 6, 4)
        self._flood("etl-nightly")
        self.start(self._places["train-resnet"], *BURN)
        self._busy = [self.start(self._places["search"], *BURN)]
        self.works(False)

    def works(self, is_busy: bool) -> None:
        """Have `search` use a CPU, or none."""
        for each in self._busy:
            each.send_signal(signal.SIGCONT if is_busy else signal.SIGSTOP)

    def takes(self, seconds: float) -> Hog:
        """Have `checkout` take memory for some time, for which page cache has to be reclaimed."""
        return self._hog("checkout", self._mib // 6, 120, int(seconds))

    def surges(self, name: str = "batch-join") -> Hog:
        """Have a best-effort pod grow beyond the threshold."""
        return self._hog(name, self._mib * 6 // 10, 60)

    def _hog(self, name: str, mib: int, rate_mib_s: int, hold_s: int = 600) -> Hog:
        made = Hog(self._places[name], mib, rate_mib_s=rate_mib_s, hold_s=hold_s)
        self._ending.callback(made.stop)
        return made

    def _flood(self, name: str) -> None:
        place, quiet = self._places[name], subprocess.DEVNULL
        self.start(place, "sh", "-c", _FLOOD, "sh", self._sparse, place / "cgroup.procs", stdout=quiet, stderr=quiet)
