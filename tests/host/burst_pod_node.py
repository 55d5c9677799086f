"""A node with one latency-sensitive pod that has a CPU limit, as kubelet writes it, and work in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from koordebpf.act.writer.places import Places
from koordebpf.kernel.cgroup.files import CgroupFile, Value
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from tests.host.held_node import CpuFiles
from tests.support.nodes import NodeCgroup

QUOTA, BURST = CgroupFile.CPU_QUOTA, CgroupFile.CPU_BURST
LIMIT_US = 5_000  # 50m: three times it is there on a machine that is busy with other work, too
_BURN = "while True: pass"


class BurstPodNode:
    """A pod `web` of two containers that may use a twentieth of a CPU each, below a node without quota."""

    def __init__(self, node: NodeCgroup) -> None:
        self.node = node
        self.places = Places(find_controllers())
        self.containers = node.add_pod("web", be=False, containers=2)
        for each in node.pods[0]["spec"]["containers"]:
            each["resources"] = {"requests": {"cpu": "10m"}, "limits": {"cpu": "50m"}}
        node.pods[0]["metadata"]["labels"]["koordinator.sh/qosClass"] = "LS"
        self.files = CpuFiles(node)
        self.pod = node.pod_paths["web"]
        self._processes: list[subprocess.Popen[bytes]] = []
        if self.places.versions["cpu"] == 2:
            for directory in (*(node.path / "kubepods").glob("*"), self.pod):
                if directory.is_dir():
                    (directory / "cgroup.subtree_control").write_text("+cpu")
        self.put(self.pod, 2 * LIMIT_US)
        for each in self.containers:
            self.put(each, LIMIT_US)

    @property
    def quotas(self) -> list[Value]:
        """Of the pod and its containers."""
        return [self.value(each, QUOTA) for each in (self.pod, *self.containers)]

    @property
    def bursts(self) -> list[Value]:
        """The same of what may be saved up."""
        return [self.value(each, BURST) for each in (self.pod, *self.containers)]

    def file(self, directory: Path, file: CgroupFile) -> Path:
        found = self.places.locate((str(self.files.relative(directory)), file))
        assert found is not None
        return found

    def value(self, directory: Path, file: CgroupFile) -> Value:
        return self.places.parse((str(self.files.relative(directory)), file), self.file(directory, file).read_text())

    def put(self, directory: Path, quota_us: int) -> None:
        """Write a quota as kubelet and its runtime do."""
        self.file(directory, QUOTA).write_text(
            str(quota_us) if self.places.versions["cpu"] == 1 else f"{quota_us} 100000"
        )

    def throttled(self, directory: Path) -> int:
        """Return how often a cgroup was throttled."""
        stat = self.file(directory, QUOTA).parent / "cpu.stat"
        return int(dict(line.split() for line in stat.read_text().splitlines())["nr_throttled"])

    def burn(self, container: int = 0) -> subprocess.Popen[bytes]:
        """Start a process in a container that uses all CPU it gets."""
        return self.start(container, sys.executable, "-S", "-c", _BURN)

    def start(self, container: int, *command: str, **given: Any) -> subprocess.Popen[bytes]:
        """Start a process in a container."""
        process = subprocess.Popen(command, **given)
        self._processes.append(process)
        self.files.join(self.containers[container], process.pid)
        return process

    def calm(self) -> None:
        """End all work."""
        for each in self._processes:
            each.kill()
            each.wait()
        self._processes.clear()

    def write(self, folder: Path, **strategy: Any) -> Path:
        """Write the pods as they are now, and a NodeSLO with these fields of cpuBurstStrategy."""
        manifest, part = folder / "pods.json", folder / "more.json"
        self.node.write_manifest(part)
        written = json.loads(part.read_text())
        written["items"][-1]["spec"]["cpuBurstStrategy"] = {"policy": "auto", **strategy}
        part.write_text(json.dumps(written))
        part.rename(manifest)
        return manifest

    def arguments(self, folder: Path, settings: str = "{}", **strategy: Any) -> tuple[object, ...]:
        """Return arguments of an agent with the gate on; `settings` are YAML of strategies.cpuBurst."""
        config = folder / "config.yaml"
        config.write_text(
            "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\n"
            f"strategies: {{cpuBurst: {settings}}}\nfeatureGates: {{BECPUSuppress: false, CPUBurst: true}}\n"
        )
        return "--pods", self.write(folder, **strategy), "--node-cgroup", self.node.path, "--config", config

    def close(self) -> None:
        self.calm()
        self.files.close()
