"""A node with one latency-sensitive pod that has a CPU limit, as kubelet writes it, and work in it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from koordebpf.kernel.cgroup.files import CgroupFile, Value
from tests.host.rigs.live_node import BURN, LiveNode
from tests.support.nodes import NodeCgroup

QUOTA, BURST = CgroupFile.CPU_QUOTA, CgroupFile.CPU_BURST
LIMIT_US = 5_000  # 50m: three times it is there on a machine that is busy with other work, too


class BurstPodNode(LiveNode):
    """A pod `web` of two containers that may use a twentieth of a CPU each, below a node without quota."""

    def __init__(self, node: NodeCgroup, limit_us: int = LIMIT_US, *, beside: bool = False) -> None:
        """Make it; with `beside` there is a pod `plain` too, of one container, which asks for no burst."""
        self._limit_us, self._beside = limit_us, beside
        super().__init__(node, levels=None)

    def fill(self) -> None:
        self.containers = self.add_pod("web", be=False, containers=2)
        self.pod = self.node.pod_paths["web"]
        if self._beside:
            annotations = {"koordinator.sh/cpuBurst": '{"policy": "none"}'}
            self.containers += self.add_pod("plain", be=False, annotations=annotations)
        for each in self.node.pods:
            for container in each["spec"]["containers"]:
                container["resources"] = {"requests": {"cpu": "10m"}, "limits": {"cpu": f"{self._limit_us // 100}m"}}
            each["metadata"]["labels"]["koordinator.sh/qosClass"] = "LS"
        for name, directory in self.node.pod_paths.items():
            self.limit_cpu(directory, self._limit_us * (2 if name == "web" else 1))
        for each_container in self.containers:
            self.limit_cpu(each_container, self._limit_us)

    @property
    def quotas(self) -> list[Value]:
        """Of the pod and its containers."""
        return [self.value(each, QUOTA) for each in (self.pod, *self.containers)]

    @property
    def bursts(self) -> list[Value]:
        """The same of what may be saved up."""
        return [self.value(each, BURST) for each in (self.pod, *self.containers)]

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
        return self.start(self.containers[container], *BURN)

    def write(self, folder: Path, **strategy: Any) -> Path:
        """Write the pods as they are now, and a NodeSLO with these fields of cpuBurstStrategy."""
        return self.write_manifest(folder, cpuBurstStrategy={"policy": "auto", **strategy})

    def arguments(self, folder: Path, settings: Mapping[str, Any] = {}, **strategy: Any) -> tuple[object, ...]:
        """Return arguments of an agent with the gate on; `settings` are of strategies.cpuBurst."""
        gates = {"BECPUSuppress": False, "CPUBurst": True}
        manifest = self.write(folder, **strategy)
        return self.agent_arguments(manifest, strategies={"cpuBurst": dict(settings)}, featureGates=gates)
