"""A node with one latency-sensitive pod that has a CPU limit, as kubelet writes it, and work in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from koordebpf.kernel.cgroup.files import CgroupFile, Value
from tests.host.held_node import CpuFiles
from tests.host.node_files import NodeFiles, write_manifest
from tests.support.nodes import NodeCgroup

QUOTA, BURST = CgroupFile.CPU_QUOTA, CgroupFile.CPU_BURST
LIMIT_US = 5_000  # 50m: three times it is there on a machine that is busy with other work, too
_BURN = "while True: pass"


class BurstPodNode(NodeFiles):
    """A pod `web` of two containers that may use a twentieth of a CPU each, below a node without quota."""

    def __init__(self, node: NodeCgroup, limit_us: int = LIMIT_US, *, beside: bool = False) -> None:
        """Make it; with `beside` there is a pod `plain` too, of one container, which asks for no burst."""
        super().__init__()
        self.node = node
        self.containers = node.add_pod("web", be=False, containers=2)
        if beside:
            annotations = {"koordinator.sh/cpuBurst": '{"policy": "none"}'}
            self.containers += node.add_pod("plain", be=False, annotations=annotations)
        for each in node.pods:
            for container in each["spec"]["containers"]:
                container["resources"] = {"requests": {"cpu": "10m"}, "limits": {"cpu": f"{limit_us // 100}m"}}
            each["metadata"]["labels"]["koordinator.sh/qosClass"] = "LS"
        self.files = CpuFiles(node)
        self.pod = node.pod_paths["web"]
        self._processes: list[subprocess.Popen[bytes]] = []
        if self.places.versions["cpu"] == 2:
            for directory in (*(node.path / "kubepods").glob("*"), *node.pod_paths.values()):
                if directory.is_dir():
                    (directory / "cgroup.subtree_control").write_text("+cpu")
        for name, directory in node.pod_paths.items():
            self.put(directory, limit_us * (2 if name == "web" else 1))
        for each in self.containers:
            self.put(each, limit_us)

    @property
    def quotas(self) -> list[Value]:
        """Of the pod and its containers."""
        return [self.value(each, QUOTA) for each in (self.pod, *self.containers)]

    @property
    def bursts(self) -> list[Value]:
        """The same of what may be saved up."""
        return [self.value(each, BURST) for each in (self.pod, *self.containers)]

    def put(self, directory: Path, quota_us: int) -> None:
        """Write a quota as kubelet and its runtime do."""
        self.file(directory, QUOTA).write_text(
            str(quota_us) if self.places.versions["cpu"] == 1 else f"{quota_us} 100000"
        )

    def throttled(self, directory: Path) -> int:
        """Return how often a cgroup was throttled."""
        return self.stat(directory)["nr_throttled"]

    def throttled_ms(self, directory: Path) -> float:
        """Return for how long a cgroup was throttled, on all CPUs together."""
        stat = self.stat(directory)
        return stat["throttled_time"] / 1e6 if "throttled_time" in stat else stat["throttled_usec"] / 1e3

    def stat(self, directory: Path) -> dict[str, int]:
        """Return cpu.stat of a cgroup."""
        text = (self.file(directory, QUOTA).parent / "cpu.stat").read_text()
        return {name: int(value) for name, value in (line.split() for line in text.splitlines())}

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
        return write_manifest(self.node, folder, cpuBurstStrategy={"policy": "auto", **strategy})

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
