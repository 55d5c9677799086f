"""A live node, which every rig here extends: pods in real cgroups, processes in them, and what an agent is given."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from koordebpf.act.writer.places import Places
from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.files import CgroupFile, Value
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.io.closing import Closing
from tests.conftest import OTHER_MACHINE
from tests.support.hierarchies import Hierarchies
from tests.support.nodes import NodeCgroup

CONTROLLERS = ("cpu", "cpuset", "cpuacct")
BURN = (sys.executable, "-S", "-c", "while True: pass")
T = TypeVar("T")


class LiveNode(Closing):
    """A node whose pods have the files of other controllers beside memory's, as a whole node's have.

    Directories are given as they are in the memory hierarchy. A rig makes its pods and starts its processes in `fill`;
    what was made is removed also where that fails.

    Args:
        node: may have pods.
        controllers: without those that the machine lacks.
        levels: of Hierarchies: the node and `kubepods` by default.
        is_own: `close` closes `node` too.
    Raises:  KeyError: the machine lacks cpu.
    """

    thresholds = (70, 65)  # percent of the node: evict above, down to

    def __init__(
        self,
        node: NodeCgroup,
        controllers: Collection[str] = CONTROLLERS,
        *,
        levels: int | None = 2,
        is_own: bool = False,
    ) -> None:
        self.node = node
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ending = ExitStack()
        if is_own:
            self._ending.callback(node.close)
        try:
            found = find_controllers()
            self.places = Places(found)
            mounts = {name: found[name] for name in controllers if name in found or name == "cpu"}
            self.hierarchies = Hierarchies(node.path, found["memory"], mounts, levels)
            self._ending.callback(self.hierarchies.close)
            self._ending.callback(self.calm)
            self.hierarchies.follow()
            self.fill()
        except BaseException:
            self.close()
            raise

    def fill(self) -> None:
        """Make what the rig has from the beginning."""

    def close(self) -> None:
        """End all work, then remove what was made."""
        self._ending.close()

    def add_pod(self, name: str, **given: Any) -> list[Path]:
        """Make a pod as NodeCgroup does, in every hierarchy."""
        made = self.node.add_pod(name, **given)
        self.hierarchies.follow()
        return made

    @property
    def be_root(self) -> Path:
        """The directory of all best-effort pods in the hierarchy of cpu."""
        return self.quota_file.parent

    @property
    def quota_file(self) -> Path:
        """Its quota."""
        return self.file(self.node.path / "kubepods/besteffort", CgroupFile.CPU_QUOTA)

    def path(self, directory: Path) -> str:
        """Return where a directory lies in every hierarchy."""
        return str(self.hierarchies.relative(directory))

    def file(self, directory: Path, file: CgroupFile) -> Path:
        found = self.places.locate((self.path(directory), file))
        assert found is not None
        return found

    def value(self, directory: Path, file: CgroupFile) -> Value:
        return self.places.parse((self.path(directory), file), self.file(directory, file).read_text())

    def limit_cpu(self, directory: Path, quota_us: int) -> None:
        """Write a quota for 100 ms as kubelet and its runtime do."""
        text = str(quota_us) if self.places.versions["cpu"] == 1 else f"{quota_us} 100000"
        self.file(directory, CgroupFile.CPU_QUOTA).write_text(text)

    def spawn(self, *command: object, **given: Any) -> subprocess.Popen[bytes]:
        """Start a process that is killed at the end; it goes into a cgroup by itself."""
        process = subprocess.Popen(list(map(str, command)), **given)
        self._processes.append(process)
        return process

    def start(self, container: Path, *command: object, **given: Any) -> subprocess.Popen[bytes]:
        """Start a process in a container that is killed at the end."""
        process = self.spawn(*command, **given)
        self.hierarchies.join(container, process.pid)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process and reap it; twice is harmless."""
        process.kill()
        process.wait()

    def calm(self) -> None:
        """End every process that was started."""
        while self._processes:
            self.end(self._processes.pop())

    def write_manifest(self, folder: Path, more: Iterable[dict[str, Any]] = (), **spec: Mapping[str, Any]) -> Path:
        """Write the pods as they are now, and a NodeSLO as `lay_over` does; whole before it is seen."""
        part = self.node.write_manifest(folder / "more.json", *self.thresholds)
        return lay_over(part, more, **spec).rename(folder / "pods.json")

    def agent_arguments(self, manifest: Path, *more: object, **configuration: Any) -> tuple[object, ...]:
        """Return arguments of an agent, with its configuration beside the manifest if there is any."""
        config = ("--config", write_config(manifest.parent, **configuration)) if configuration else ()
        return ("--pods", manifest, "--node-cgroup", self.node.path, *config, *more)


def or_skipped(make: Callable[[], T]) -> T:
    """Return the node that is made; skip the test where the machine has no cpu controller for it."""
    try:
        return make()
    except (KeyError, SupportError) as error:
        pytest.skip(f"{OTHER_MACHINE}it has no cpu controller: {error}")


def burner() -> subprocess.Popen[bytes]:
    """Start a process that uses all CPU it gets."""
    return subprocess.Popen(BURN)


def lay_over(manifest: Path, more: Iterable[dict[str, Any]] = (), **spec: Mapping[str, Any]) -> Path:
    """Lay fields over the parts of a manifest's NodeSLO, and put more objects beside its own."""
    written = json.loads(manifest.read_text())
    slo = written["items"][-1]["spec"]
    slo |= {name: slo.get(name, {}) | fields for name, fields in spec.items()}
    written["items"] += more
    manifest.write_text(json.dumps(written))
    return manifest


def with_strategy(manifest: Path, fields: dict[str, Any], more: Iterable[dict[str, Any]] = ()) -> Path:
    """The same with fields of resourceUsedThresholdWithBE."""
    return lay_over(manifest, more, resourceUsedThresholdWithBE=fields)


def write_config(folder: Path, **fields: Any) -> Path:
    """Write an AgentConfiguration with these fields."""
    config = folder / "config.yaml"
    config.write_text(json.dumps({"apiVersion": "koordebpf.io/v1alpha1", "kind": "AgentConfiguration"} | fields))
    return config
