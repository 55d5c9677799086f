"""A node cgroup with CPU files beside the memory ones, as a whole node has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, find_controllers
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.support.nodes import NodeCgroup

CONTROLLERS = ("cpu", "cpuset", "cpuacct")
_QUOTA = {1: "cpu.cfs_quota_us", 2: "cpu.max"}
T = TypeVar("T")


def or_skipped(make: Callable[[], T]) -> T:
    """Return the node that is made; skip the test where the machine has no cpu controller for it."""
    try:
        return make()
    except (KeyError, SupportError) as error:
        pytest.skip(f"{OTHER_MACHINE}it has no cpu controller: {error}")


class CpuFiles:
    """Gives a node's directories CPU files: on cgroup v1 the same directories in the hierarchies `mounts`.

    Raises:  KeyError: there is no cpu controller among them.
    """

    def __init__(self, node: NodeCgroup, mounts: Mapping[str, ControllerMount] | None = None) -> None:
        found = find_controllers()
        self.mounts = mounts or {name: found[name] for name in CONTROLLERS if name in found}
        self._node, self._below = node, found["memory"].mount_point
        self._made: list[Path] = []  # parents first
        version = self.mounts["cpu"].version
        for mount in {mount.mount_point: mount for mount in self.mounts.values() if mount.version == 1}.values():
            self._mirror(mount)
        if version == 2:
            self._hand_down()
        self.be_root = self.mounts["cpu"].mount_point / self.relative(node.path / "kubepods" / "besteffort")
        self.quota_file = self.be_root / _QUOTA[version]

    def relative(self, directory: Path) -> Path:
        """Return where a directory of the memory hierarchy lies in every other."""
        return directory.relative_to(self._below)

    def join(self, directory: Path, pid: int) -> None:
        """Put a process into a directory of the memory hierarchy, and of every other."""
        for mount in {mount.mount_point for mount in self.mounts.values() if mount.version == 1} | {self._below}:
            (mount / self.relative(directory) / "cgroup.procs").write_text(str(pid))

    def vanish(self, directory: Path) -> None:
        """Remove a directory without processes from every hierarchy."""
        mounts = {mount.mount_point for mount in self.mounts.values() if mount.version == 1} | {self._below}
        for each in (mount / self.relative(directory) for mount in mounts):
            until(lambda each=each: _removed(each), f"{each} is empty")
        self._made = [each for each in self._made if each.exists()]

    def outweigh(self) -> str:
        """Give the node most of the CPU whatever runs beside it; return how, in words."""
        mount = self.mounts["cpu"]
        name, weight = ("cpu.shares", 16 * 1024) if mount.version == 1 else ("cpu.weight", 16 * 100)
        (mount.mount_point / self.relative(self._node.path) / name).write_text(str(weight))
        return f"{name} {weight} of the node among the machine's other loads"

    def close(self) -> None:
        for directory in reversed(self._made):
            until(lambda directory=directory: _removed(directory), f"{directory} is empty")

    def _mirror(self, mount: ControllerMount) -> None:
        top = mount.mount_point / self.relative(self._node.path)
        wanted = [*reversed([each for each in top.parents if not each.exists()]), top]
        wanted += [
            mount.mount_point / self.relative(Path(directory) / name)
            for directory, names, _ in os.walk(self._node.path)
            for name in names
        ]
        for directory in wanted:
            directory.mkdir()
            self._made.append(directory)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (directory / name).exists():
                    (directory / name).write_text((directory.parent / name).read_text())

    def _hand_down(self) -> None:
        levels = [self._below, *reversed(self._node.path.relative_to(self._below).parents)]
        for directory in [self._below / each for each in levels] + [self._node.path, self._node.path / "kubepods"]:
            (directory / "cgroup.subtree_control").write_text("+cpu +cpuset")


def burner() -> subprocess.Popen[bytes]:
    """Start a process that uses all CPU it gets."""
    return subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])


def with_strategy(manifest: Path, fields: dict[str, Any], more: Iterable[dict[str, Any]] = ()) -> Path:
    """Lay fields of resourceUsedThresholdWithBE over a node's manifest, and put more objects beside its own."""
    written = json.loads(manifest.read_text())
    written["items"][-1]["spec"]["resourceUsedThresholdWithBE"] |= fields
    written["items"] += more
    manifest.write_text(json.dumps(written))
    return manifest


def _removed(directory: Path) -> bool:
    try:
        directory.rmdir()
    except OSError:  # EBUSY: a killed task is still leaving
        return False
    return True


class HeldNode:
    """A node with a best-effort pod that uses all CPU it gets, and one that is not best-effort."""

    def __init__(self, node: NodeCgroup) -> None:
        self.node = node
        (self.container,) = node.add_pod("be")
        node.add_pod("ls", be=False)
        self.files = CpuFiles(node)
        self.quota_file = self.files.quota_file
        self.process = burner()
        self.files.join(self.container, self.process.pid)

    def arguments(
        self, folder: Path, policy: str = "cfsQuota", more: Iterable[dict[str, Any]] = ()
    ) -> tuple[object, ...]:
        """Return what the agent needs to hold it by a policy, in a dry run; `more` are objects beside its pods."""
        manifest = folder / "pods.json"
        self.node.write_manifest(manifest)
        with_strategy(manifest, {"cpuSuppressThresholdPercent": 65, "cpuSuppressPolicy": policy}, more)
        return "--pods", manifest, "--node-cgroup", self.node.path

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.files.close()
