"""The cgroup v2 files of a node in a folder, and the objects of its pods."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from koordebpf.units import MIB

LIMIT_MIB = 1000
_ZERO = "active_anon inactive_file active_file unevictable shmem slab_reclaimable workingset_refault_anon"
_WRITTEN = {"memory.min": "0\n", "memory.low": "0\n", "memory.high": "max\n", "memory.oom.group": "0\n"}
_DIRECTORIES = {"Guaranteed": "", "Burstable": "burstable", "BestEffort": "besteffort"}
_NAMESPACE = uuid.UUID(int=38)


class Pod:
    """One pod: its object and its directory."""

    def __init__(self, name: str, mib: int, given: Mapping[str, Any]) -> None:
        self.name, self.mib = name, mib
        self.uid = str(uuid.uuid5(_NAMESPACE, name))
        self.kube_qos: str = given.get("kube_qos", "BestEffort")
        self.namespace: str = given.get("namespace", "spark")
        labels = {"koordinator.sh/qosClass": given["qos"]} if given.get("qos") else {}
        resources = {"requests": {"memory": "64Mi"}} if self.kube_qos != "BestEffort" else {}
        if self.kube_qos == "Guaranteed":
            resources = {"requests": {"memory": "64Mi", "cpu": "1"}, "limits": {"memory": "64Mi", "cpu": "1"}}
        self.object: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "uid": self.uid,
                "labels": {**labels, **given.get("labels", {})},
                "annotations": dict(given.get("annotations", {})),
            },
            "spec": {
                "priority": given.get("priority", 5000),
                "containers": [{"name": "main", "resources": resources}],
            },
            "status": {"phase": "Running", "qosClass": self.kube_qos},
        }

    def directory(self, node: Path) -> Path:
        return node / "kubepods" / _DIRECTORIES[self.kube_qos] / f"pod{self.uid}"


class Tree:
    """The directories of the node and its pods; `mount` is where the hierarchy is."""

    def __init__(self, folder: Path) -> None:
        self.mount = folder / "cgroup"
        self.node = self.mount / "node"
        kubepods = self.node / "kubepods"
        for path in (self.mount, self.node, kubepods, kubepods / "besteffort", kubepods / "burstable"):
            self._make(path)
        (self.mount / "cgroup.controllers").write_text("memory\n")
        (self.node / "memory.max").write_text(f"{LIMIT_MIB * MIB}\n")

    def add(self, pod: Pod) -> None:
        self._make(pod.directory(self.node))

    def remove(self, pod: Pod) -> None:
        shutil.rmtree(pod.directory(self.node))

    def hold(self, pods: list[Pod]) -> None:
        """Let the pods hold what they have, and the node the sum."""
        for pod in pods:
            _fill(pod.directory(self.node), pod.mib)
        _fill(self.node, sum(pod.mib for pod in pods))

    def changed(self) -> list[str]:
        """Return the files that do not hold what they held at first."""
        return [
            f"{path.relative_to(self.mount)}: {path.read_text().strip()}"
            for name, first in _WRITTEN.items()
            for path in self.mount.rglob(name)
            if path.read_text() != first
        ]

    def _make(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        _fill(path, 0)
        for name, text in _WRITTEN.items():
            (path / name).write_text(text)
        (path / "memory.max").write_text("max\n")
        (path / "memory.events").write_text("low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n")
        (path / "cgroup.procs").write_text("")
        (path / "cgroup.events").write_text("populated 1\nfrozen 0\n")


def _fill(path: Path, mib: int) -> None:
    bytes_ = mib * MIB
    lines = [f"inactive_anon {bytes_}", f"anon {bytes_}", *(f"{name} 0" for name in _ZERO.split())]
    (path / "memory.stat").write_text("\n".join(lines) + "\n")
    (path / "memory.current").write_text(f"{bytes_}\n")
