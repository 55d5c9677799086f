"""A node of real cgroups in every hierarchy, with the shares, limits and OOM scores that kubelet gives pods."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from koordebpf.errors import CgroupGone
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, find_controllers
from koordebpf.kernel.io.closing import Closing
from tests.support.hierarchies import Hierarchies
from tests.support.nodes import NodeCgroup

ROOT = Path(__file__).parents[2]
_CONTROLLERS = ("cpu", "cpuset", "cpuacct", "blkio", "io")
_BE_SCORE = 1000  # pkg/kubelet/qos: besteffortOOMScoreAdj
# A process joins every hierarchy before it is anything else, and ends with the harness.
_JOIN = """
echo "$1" >/proc/self/oom_score_adj; n=$2; shift 2
while [ "$n" -gt 0 ]; do echo $$ >"$1"; shift; n=$((n-1)); done
exec "$@"
"""


class Scale(NamedTuple):
    """Shares of memory and of the request rate for a machine that is smaller or slower."""

    memory: float = 1.0
    rate: float = 1.0


FULL = Scale()


class Resources(NamedTuple):
    """What a container asks for: CPU in thousandths, memory in bytes; a limit of None is no limit."""

    cpu: int
    memory: int
    cpu_limit: int | None = None
    memory_limit: int | None = None

    def scaled(self, share: float) -> Resources:
        """Return them with a share of the memory."""
        limit = None if self.memory_limit is None else int(self.memory_limit * share)
        return self._replace(memory=int(self.memory * share), memory_limit=limit)

    def native(self) -> dict[str, dict[str, str]]:
        """Return it as `resources` of a container's spec."""
        asked = {"cpu": f"{self.cpu}m", "memory": str(self.memory)}
        limits = {
            name: text
            for name, value, text in (
                ("cpu", self.cpu_limit, f"{self.cpu_limit}m"),
                ("memory", self.memory_limit, str(self.memory_limit)),
            )
            if value is not None
        }
        return {"requests": asked, "limits": limits}

    def batch(self) -> dict[str, dict[str, str]]:
        """Return it as Koordinator's webhook writes it for a batch pod: limits equal requests."""
        asked = {"kubernetes.io/batch-cpu": str(self.cpu), "kubernetes.io/batch-memory": str(self.memory)}
        return {"requests": asked, "limits": asked}


class FeltNode(Closing):
    """A node of `limit_bytes`; `close` kills what is in it and removes it."""

    def __init__(self, limit_bytes: int) -> None:
        found = find_controllers()
        self._memory = found["memory"]
        self.version = self._memory.version
        self.cgroup = NodeCgroup(self._memory.mount_point, self.version, limit_bytes)
        mounts = {name: found[name] for name in _CONTROLLERS if name in found}
        self._hierarchies = Hierarchies(self.cgroup.path, self._memory, mounts)
        self._cpu = found["cpu"]
        self._accounting = found.get("cpuacct", self._cpu)
        self._ls: dict[str, Resources] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._hierarchies.follow()
            # The node as well as kubepods, beside the kernel's threads and what else runs on the machine.
            for level in ("", "kubepods"):
                self._weigh(self.cgroup.path / level, 1024 * (os.cpu_count() or 1))
            self._weigh(self.cgroup.path / "kubepods/besteffort", 2)
        except BaseException:
            self.close()
            raise

    def add_ls(self, name: str, asks: Resources) -> Path:
        """Make a burstable pod of class LS with one container; return the container's directory."""
        (container,) = self.cgroup.add_pod(name, be=False)
        self.cgroup.pods[-1]["spec"]["containers"][0]["resources"] = asks.native()
        self._ls[name] = asks
        self._hierarchies.follow()
        for directory in (container.parent, container):
            self._weigh(directory, max(asks.cpu * 1024 // 1000, 2))
            if asks.cpu_limit is not None:
                self._limit_cpu(directory, asks.cpu_limit)
            if asks.memory_limit is not None:
                file = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
                (directory / file).write_text(str(asks.memory_limit))
        together = sum(each.cpu for each in self._ls.values())
        self._weigh(self.cgroup.path / "kubepods/burstable", max(together * 1024 // 1000, 2))
        return container

    def add_be(self, name: str, batch: Resources) -> Path:
        """Make a best-effort pod with batch resources, which kubelet does not know: it gets no limits from it."""
        (container,) = self.cgroup.add_pod(name)
        self.cgroup.pods[-1]["spec"]["containers"][0]["resources"] = batch.batch()
        self._hierarchies.follow()
        for directory in (container.parent, container):
            self._weigh(directory, 2)
        return container

    def remove(self, name: str) -> None:
        """Kill a pod's processes and remove it from every hierarchy and from the manifest."""
        directory = self.cgroup.pod_paths.pop(name)
        self._ls.pop(name, None)
        self.cgroup.pods[:] = [each for each in self.cgroup.pods if each["metadata"]["name"] != name]
        self._remove(directory)

    def start(
        self,
        container: Path,
        command: Sequence[str],
        *,
        score: int = _BE_SCORE,
        out: int = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process in a container, with the oom_score_adj of its class."""
        joins = [str(each / "cgroup.procs") for each in self._hierarchies.everywhere(container)]
        before = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", _JOIN, "sh", str(score), str(len(joins)), *joins]
        process = subprocess.Popen(
            [*before, *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def score(self, name: str) -> int:
        """Return the oom_score_adj that kubelet gives a burstable pod (pkg/kubelet/qos/policy.go)."""
        score = 1000 - 1000 * self._ls[name].memory // self.cgroup.limit_bytes
        return min(max(score, 3), 999)

    def write_manifest(self, path: Path, slo: Mapping[str, Any]) -> None:
        """Write the pods and a NodeSLO's spec, in one rename."""
        object_ = {
            "apiVersion": "slo.koordinator.sh/v1alpha1",
            "kind": "NodeSLO",
            "metadata": {"name": "node"},
            "spec": slo,
        }
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*self.cgroup.pods, object_]}))
        part.rename(path)

    def oom_kills(self, container: Path) -> int:
        """Return how many processes of a container the kernel killed for memory; 0 where it is gone."""
        with contextlib.suppress(CgroupGone, OSError), CgroupMemory(container, self.version) as memory:
            return memory.oom_kills() or 0
        return 0

    def cpu_s(self, container: Path) -> float:
        """Return the CPU time of a container in seconds; 0 where it is gone."""
        directory = self._accounting.mount_point / container.relative_to(self._memory.mount_point)
        with contextlib.suppress(OSError):
            if self._accounting.version == 1:
                return int((directory / "cpuacct.usage").read_text()) / 1e9
            return int((directory / "cpu.stat").read_text().split()[1]) / 1e6
        return 0.0

    def waited_ms(self, container: Path) -> float:
        """Return how long the threads that a container has now have waited for a CPU (/proc/PID/schedstat)."""
        waited = 0
        for pid in self._pids(container):
            for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):
                    waited += int(task.read_text().split()[1])
        return waited / 1e6

    def working_set_bytes(self) -> int:
        """Return the node's usage without inactive file pages, as kubelet counts memory.available."""
        usage = self.cgroup.usage_bytes()
        name = "inactive_file " if self.version == 2 else "total_inactive_file "
        for line in (self.cgroup.path / "memory.stat").read_text().splitlines():
            if line.startswith(name):
                return max(usage - int(line.split()[1]), 0)
        return usage

    def kill(self, container: Path) -> None:
        """Kill every process of a container."""
        for _ in range(20):
            pids = self._pids(container)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            if not pids:
                return
            time.sleep(0.01)

    def close(self) -> None:
        """Kill what is left and remove every directory."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        self.cgroup.close()
        for process in self._processes:
            process.wait()
        self._hierarchies.close()

    def _pids(self, directory: Path) -> list[int]:
        with contextlib.suppress(OSError):
            return [int(pid) for pid in (directory / "cgroup.procs").read_text().split()]
        return []

    def _remove(self, directory: Path) -> None:
        for container in (each for each in directory.glob("*/") if each.is_dir()):
            self.kill(container)
        for process in self._processes:
            process.poll()
        self._hierarchies.remove(directory)

    def _weigh(self, directory: Path, shares: int) -> None:
        at = self._cpu.mount_point / directory.relative_to(self._memory.mount_point)
        if self._cpu.version == 1:
            (at / "cpu.shares").write_text(str(shares))
        else:  # KEP-2254's conversion, as runc has it
            (at / "cpu.weight").write_text(str(min(1 + (shares - 2) * 9999 // 262142, 10000)))

    def _limit_cpu(self, directory: Path, millicpu: int) -> None:
        at = self._cpu.mount_point / directory.relative_to(self._memory.mount_point)
        if self._cpu.version == 1:
            (at / "cpu.cfs_quota_us").write_text(str(millicpu * 100))
        else:
            (at / "cpu.max").write_text(f"{millicpu * 100} 100000")
