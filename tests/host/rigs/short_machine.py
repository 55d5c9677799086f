"""A machine whose best-effort pod takes its memory, in place of a node cgroup: in a guest that a test may fill."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, MemoryHierarchy
from tests.contract.apiserver import until
from tests.host.rigs.live_node import write_config
from tests.host.rigs.thrashing_node import WalkedNode
from tests.support.loads.workloads import BUILD
from tests.support.nodes import MIB

THRESHOLD_PERCENT = 70
FILE_MIB = 128  # of each of two walkers
EARLY_MIB = 40  # who holds nothing is no victim
LEFT_MIB = int(os.environ.get("KOORDEBPF_LEFT_MIB", "96"))  # of page cache, once the pod holds the rest
MOST_MIB = 4096  # of a machine that may be filled
# Less than is available at first: as much all pods together may have, as with the kubelet's enforceNodeAllocatable.
_RESERVED_MIB = int(os.environ.get("KOORDEBPF_RESERVED_MIB", "0"))
_NO_LIMIT = 1 << 42
_LONG_S = 600
_MCL_CURRENT, _MCL_FUTURE = 1, 2  # include/uapi/asm-generic/mman.h
AGENT_SCORE, _LS_SCORE, _BE_SCORE = -997, 900, 1000  # pkg/kubelet/qos/policy.go
_COUNTED = (
    "oom_kill",
    "pgsteal_kswapd",
    "pgsteal_direct",
    "workingset_refault_file",
    "workingset_restore_file",
    "allocstall",
)


def machine_mib() -> int:
    """Return how much memory the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") // MIB


def stay_in_memory() -> None:
    """Keep this process in memory, and from the OOM killer: it is to see what happens.

    Raises:  OSError: it may not.
    """
    if ctypes.CDLL(None, use_errno=True).mlockall(_MCL_CURRENT | _MCL_FUTURE):
        raise OSError(ctypes.get_errno(), "mlockall")
    score(os.getpid(), -1000)


def score(pid: int, value: int) -> None:
    """Say how soon the kernel's OOM killer is to take a process."""
    Path(f"/proc/{pid}/oom_score_adj").write_text(str(value))


def counted() -> dict[str, int]:
    """Return what the kernel has counted since boot, in pages and times; `stalled_ms`: some task waited for memory."""
    sums = dict.fromkeys(_COUNTED, 0)
    for line in Path("/proc/vmstat").read_text().splitlines():
        name, value = line.split()
        for key in _COUNTED:
            if name == key or (key == "allocstall" and name.startswith("allocstall_")):
                sums[key] += int(value)
    some = Path("/proc/pressure/memory").read_text().splitlines()[0]
    return {**sums, "stalled_ms": int(some.rpartition("=")[2]) // 1000}


def available_mib() -> int:
    """Return MemAvailable of /proc/meminfo."""
    line = next(each for each in Path("/proc/meminfo").read_text().splitlines() if each.startswith("MemAvailable"))
    return int(line.split()[1]) // 1024


class ShortMachine(WalkedNode):
    """A latency-sensitive pod that walks through files, and a best-effort one that `grows` until they do not fit."""

    def __init__(self, hierarchy: MemoryHierarchy) -> None:
        super().__init__(hierarchy, _NO_LIMIT, THRESHOLD_PERCENT)

    def fill(self) -> None:
        self.cgroup_root = f"/{self.node.path.name}"
        (self.ls,) = self.add_pod("ls", be=False)
        self.be = self.ls
        self._limited_mib = available_mib() - _RESERVED_MIB if _RESERVED_MIB else None
        if self._limited_mib is not None:
            self.node.set_limit(self.kubepods, self._limited_mib * MIB)

    @property
    def kubepods(self) -> Path:
        """The directory of all pods."""
        return self.ls.parents[2]

    @property
    def _left_for_pods_mib(self) -> int:
        if self._limited_mib is None:
            return available_mib()
        with CgroupMemory(self.kubepods, self.node.version) as memory:
            now = memory.read()
        in_use = now.usage_bytes - now.inactive_file_bytes - now.active_file_bytes
        return self._limited_mib - in_use // MIB

    def has_hog(self, name: str) -> None:
        """Give it a best-effort pod that holds a little."""
        (self.be,) = self.add_pod(name)
        self._hold(EARLY_MIB, waits=True)

    def _hold(self, mib: int, *, waits: bool) -> None:
        score(self.holds(self.be, mib, _LONG_S, waits=waits).process.pid, _BE_SCORE)

    def loses_hog(self, name: str) -> None:
        """Take the pod away, whatever is left of it."""
        for each in self.holders:
            each.stop()
        self.holders.clear()
        self.node.remove_pod(name)

    def starts_walking(self) -> None:
        """Have the latency-sensitive pod read its files for as long as this is open."""
        for _ in range(2):
            # In memory a file is walked through without a pause: not at the cost of who is to take the memory.
            walk = (BUILD / "thrash", "/var/tmp", FILE_MIB, _LONG_S, self.ls / "cgroup.procs", "recent")
            self.walkers.append(self.spawn("nice", "-n", 19, *walk, stdout=subprocess.DEVNULL))
            score(self.walkers[-1].pid, _LS_SCORE)
        until(lambda: self.node.usage_bytes() > 2 * FILE_MIB * MIB, "files in memory", 60)

    def grows(self) -> int:
        """Have the best-effort pod take all memory that pods may have but a little; return how many MiB more."""
        mib = self._left_for_pods_mib - LEFT_MIB
        self._hold(mib, waits=False)
        return mib

    @property
    def is_hog_alive(self) -> bool:
        return any(each.process.poll() is None for each in self.holders)

    @property
    def are_others_alive(self) -> bool:
        return all(each.poll() is None for each in self.walkers)

    def arguments(self, folder: Path, action: str) -> list[object]:
        """Return an agent's arguments, with the dead man's switch."""
        config = write_config(folder, deadMan={"action": action})
        given = ["--config", config, "--pods", self.write_manifest(folder), "--cgroup-root", self.cgroup_root]
        given += ["--executor", "cgroup", "--evictions-per-minute", "1000", "--feature-gates", "BECPUSuppress=false"]
        return [*given, "--enforce"]
