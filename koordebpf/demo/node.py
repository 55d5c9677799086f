"""A node made of real cgroups: a limited one, kubepods below it as the kubelet lays them out, and its pods' manifest.

Works on cgroup v1 and v2 (where the memory controller is enabled level by level). Touches nothing outside its
directory, but for that controller in the parent's cgroup.subtree_control.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from koordebpf.errors import CgroupGone, SupportError
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, cgroup_id, walk
from koordebpf.kernel.cgroup.kill import KillTarget, kill_cgroup
from koordebpf.kernel.io.closing import Closing
from koordebpf.units import NS_PER_S

CgroupVersion = Literal[1, 2]

_REMOVE_NS = 10 * NS_PER_S  # a killed process releases its memory before its cgroup can be removed
_DEMO = "koordebpf-demo-"
_DEMO_NAME = re.compile(rf"{_DEMO}[0-9]+")
_RUN = Path("/run")  # a tmpfs, where the agent's records cost its evictions no disk


class NodeCgroup(Closing):
    """A cgroup that is a node. `close()` kills what is left in it and removes it."""

    def __init__(self, memory_root: Path, version: CgroupVersion, limit_bytes: int, name: str | None = None) -> None:
        """Make the node and its QoS levels.

        Raises:  SupportError: this hierarchy does not let us, or the memory controller cannot be enabled there.
        """
        self.version = version
        self.path = memory_root / (name or f"koordebpf-node-{os.getpid()}-{uuid.uuid4().hex[:6]}")
        self.limit_bytes = limit_bytes
        self.pods: list[dict[str, Any]] = []
        self.pod_paths: dict[str, Path] = {}  # by name
        if version == 2:
            _enable_memory(memory_root)
        try:
            self.path.mkdir()
        except OSError as error:
            raise SupportError(f"node cgroup {self.path}", error.strerror or "mkdir failed", _WRITABLE) from None
        try:
            self.set_limit(self.path, limit_bytes)
            if version == 2:
                _enable_memory(self.path)
            for level in ("kubepods", "kubepods/burstable", "kubepods/besteffort"):
                self._make(self.path / level)
        except BaseException:
            self.close()
            raise

    def set_limit(self, path: Path, limit_bytes: int) -> None:
        """Limit the memory of a cgroup of the node."""
        (path / ("memory.max" if self.version == 2 else "memory.limit_in_bytes")).write_text(str(limit_bytes))

    def _make(self, path: Path) -> None:
        path.mkdir()
        if self.version == 2:
            _enable_memory(path)

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
        pod_path = self.path / "kubepods" / ("besteffort" if be else "burstable") / f"pod{uid}"
        self._make(pod_path)
        self.pod_paths[name] = pod_path
        if limit_bytes is not None:
            self.set_limit(pod_path, limit_bytes)
        ids = [uuid.uuid4().hex * 2 for _ in range(containers)]
        directories = [pod_path / container_id for container_id in ids]
        for directory in directories:
            directory.mkdir()
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

    def remove_pod(self, name: str) -> None:
        """Kill what is left in a pod, and remove it from the node and its manifest."""
        remove_subtree(self.pod_paths.pop(name), self.version)
        self.pods = [each for each in self.pods if each["metadata"]["name"] != name]

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

    def oom_kills(self) -> int | None:
        """Return how many tasks the kernel's OOM killer took in the node; None before Linux 4.13."""
        # v2 counts with the children, v1 each cgroup by itself.
        paths = [self.path] if self.version == 2 else [self.path.parent / path for _, _, path in self._walk()]
        kills = 0
        for path in paths:
            with CgroupMemory(path, self.version) as memory:
                if (count := memory.oom_kills()) is None:
                    return None
                kills += count
        return kills

    def pods_by_cgroup_id(self) -> dict[int, str]:
        """Return the name of the pod of each cgroup that is one or lies in one."""
        names = {path.name: name for name, path in self.pod_paths.items()}
        found = {}
        for own_id, _, path in self._walk():
            for part in path.split("/"):
                if part in names:
                    found[own_id] = names[part]
        return found

    def _walk(self) -> Iterator[tuple[int, int, str]]:
        return walk(self.path, self.path.parent)

    def close(self) -> None:
        """Kill every process in the node and remove its cgroups; twice is harmless."""
        remove_subtree(self.path, self.version)


_WRITABLE = "Run on the host, or in a container that may write its cgroup file system"


def _enable_memory(path: Path) -> None:
    control = path / "cgroup.subtree_control"
    try:
        control.write_text("+memory")
    except OSError as error:
        raise SupportError(
            "memory controller for a node cgroup", f"+memory > {control}: {error.strerror}", _WRITABLE
        ) from None


def remove_subtree(path: Path, version: CgroupVersion) -> None:
    """Kill what is in a cgroup and below it, and remove it, children first; one that is gone is left alone."""
    deadline_ns = time.monotonic_ns() + _REMOVE_NS
    try:
        kill_cgroup(KillTarget(path, cgroup_id(path), version), deadline_ns=deadline_ns)
    except CgroupGone:
        return
    for directory, _, _ in os.walk(path, topdown=False):
        while True:
            try:
                Path(directory).rmdir()
            except FileNotFoundError:
                break
            except OSError:  # EBUSY: a process is out of cgroup.procs before it is out of the cgroup
                if time.monotonic_ns() > deadline_ns:
                    raise
                time.sleep(0.01)
            else:
                break


class DemoNode(NamedTuple):
    """A demo's node, its directory for files, and the one that its agent is given as --run-dir."""

    node: NodeCgroup
    files: Path
    run_dir: Path


@contextlib.contextmanager
def demo_node(memory_root: Path, version: CgroupVersion, limit_bytes: int) -> Iterator[DemoNode]:
    """Give a demo's node and its directories; all of it is gone afterwards.

    What an earlier demo left that was killed is removed first. Each demo holds a lock on its cgroup for as long as it
    lives, so that another one's is never taken for a leftover, also one in another pid namespace.
    """
    name = f"{_DEMO}{os.getpid()}"
    with contextlib.ExitStack() as stack:
        with _locked(memory_root):
            _remove_leftovers(memory_root, version)
            node = stack.enter_context(NodeCgroup(memory_root, version, limit_bytes, name))
            stack.enter_context(_locked(node.path))
            stack.callback(node.close)  # before the lock is released
        files, run_dir = directories = [folder / name for folder in _folders()]
        for directory in directories:
            try:
                directory.mkdir(mode=0o700)
            except OSError as error:
                raise SupportError(f"directory {directory}", error.strerror or "mkdir failed", _WRITABLE) from None
            stack.callback(shutil.rmtree, directory)
        yield DemoNode(node, files, run_dir)


def _folders() -> tuple[Path, Path]:
    return Path(tempfile.gettempdir()), _RUN


def _remove_leftovers(memory_root: Path, version: CgroupVersion) -> None:
    for path in [path for path in memory_root.iterdir() if _DEMO_NAME.fullmatch(path.name)]:
        try:
            with _locked(path, wait=False):
                remove_subtree(path, version)
        except (BlockingIOError, FileNotFoundError):
            continue  # a demo that runs, or one that has just ended
    for path in itertools.chain(*(folder.glob(f"{_DEMO}*") for folder in _folders())):
        is_ours = _DEMO_NAME.fullmatch(path.name) and not path.is_symlink() and path.stat().st_uid == os.geteuid()
        # A demo removes its files before its cgroup: files alone belong to no demo.
        if is_ours and not (memory_root / path.name).exists():
            shutil.rmtree(path)


@contextlib.contextmanager
def _locked(directory: Path, *, wait: bool = True) -> Iterator[None]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(fd)


def write_agent_config(path: Path) -> Path:
    """Write the configuration of a demo's agent.

    Without warnings ahead: where a node fills within a second they come in some runs alone.
    """
    path.write_text("apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\nevictionWarning: {ahead: 0s}\n")
    return path
