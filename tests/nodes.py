"""A node made of real cgroups: a limited cgroup, kubepods below it as kubelet lays them out, and the manifest of its pods.

Used by host tests and benchmarks. Works on cgroup v1 and v2 (where the memory controller is enabled level by level).
"""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

MIB = 1 << 20


class NodeCgroup:
    """A cgroup that is a node. `close()` kills what is left in it and removes it."""

    def __init__(self, memory_root: Path, version: int, limit_bytes: int, name: str | None = None) -> None:
        self.version = version
        self.path = memory_root / (name or f"koordebpf-node-{os.getpid()}-{uuid.uuid4().hex[:6]}")
        self.pods: list[dict[str, Any]] = []
        self._made: list[Path] = []
        if version == 2:
            self._enable_memory(memory_root)
        self._make(self.path)
        limit = "memory.max" if version == 2 else "memory.limit_in_bytes"
        (self.path / limit).write_text(str(limit_bytes))
        self.limit_bytes = limit_bytes
        for level in ("kubepods", "kubepods/burstable", "kubepods/besteffort"):
            self._make(self.path / level)

    def _make(self, path: Path) -> None:
        path.mkdir()
        self._made.append(path)
        if self.version == 2 and path.parent.name != "":
            self._enable_memory(path)

    def _enable_memory(self, path: Path) -> None:
        (path / "cgroup.subtree_control").write_text("+memory")

    def add_pod(
        self,
        name: str,
        *,
        be: bool = True,
        priority: int = 5500,
        containers: int = 1,
        limit_bytes: int | None = None,
        **metadata: Any,
    ) -> list[Path]:
        """Make a pod's cgroups and its manifest; return the directory of each container."""
        uid = str(uuid.uuid4())
        pod_dir = self.path / "kubepods" / ("besteffort" if be else "burstable") / f"pod{uid}"
        self._make(pod_dir)
        if limit_bytes is not None:
            (pod_dir / ("memory.max" if self.version == 2 else "memory.limit_in_bytes")).write_text(str(limit_bytes))
        ids = [uuid.uuid4().hex * 2 for _ in range(containers)]
        directories = [pod_dir / container_id for container_id in ids]
        for directory in directories:
            directory.mkdir()
            self._made.append(directory)
        labels = {"koordinator.sh/qosClass": "BE" if be else "LS"}
        self.pods.append(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default", "uid": uid, "labels": labels, **metadata},
                "spec": {
                    "priority": priority if be else 9500,
                    "containers": [{"name": f"c{i}"} for i in range(containers)],
                },
                "status": {
                    "phase": "Running",
                    "qosClass": "BestEffort" if be else "Burstable",
                    "containerStatuses": [
                        {"name": f"c{i}", "containerID": f"containerd://{ids[i]}"} for i in range(containers)
                    ],
                },
            }
        )
        return directories

    def write_manifest(self, path: Path, threshold_percent: int = 70, lower_percent: int = 65) -> Path:
        """Write the pods and a NodeSLO as the file source reads them, in one rename."""
        slo = {
            "apiVersion": "slo.koordinator.sh/v1alpha1",
            "kind": "NodeSLO",
            "metadata": {"name": "node"},
            "spec": {
                "resourceUsedThresholdWithBE": {
                    "enable": True,
                    "memoryEvictThresholdPercent": threshold_percent,
                    "memoryEvictLowerPercent": lower_percent,
                }
            },
        }
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*self.pods, slo]}))
        part.rename(path)
        return path

    def usage_bytes(self) -> int:
        """Return the node's raw usage, page cache included."""
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        return int((self.path / name).read_text())

    def close(self) -> None:
        """Kill every process in the node and remove its cgroups."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            pids = [pid for path in self._made for pid in _pids(path)]
            if not pids:
                break
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.01)
        for path in reversed(self._made):
            for _ in range(100):
                try:
                    path.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:  # EBUSY: a killed task is still leaving
                    time.sleep(0.02)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _pids(cgroup: Path) -> list[int]:
    try:
        return [int(line) for line in (cgroup / "cgroup.procs").read_text().split()]
    except OSError:
        return []
