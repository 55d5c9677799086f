"""A node with a latency-sensitive and a best-effort pod that memory QoS is for, on cgroup v1 and v2."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.units import MIB
from tests.host.rigs.live_node import LiveNode
from tests.support.nodes import NodeCgroup

MIN, LOW, HIGH = CgroupFile.MEMORY_MIN, CgroupFile.MEMORY_LOW, CgroupFile.MEMORY_HIGH
SOFT = CgroupFile.MEMORY_SOFT_LIMIT
REQUEST = 64 * MIB
LS = {"enable": True, "minLimitPercent": 25, "lowLimitPercent": 50, "throttlingPercent": 50}


class MemoryQosNode(LiveNode):
    """Pod `ls` requests 64 MiB of 128 MiB, pod `be` as much batch memory."""

    def __init__(self, node: NodeCgroup, controllers: Collection[str] = ()) -> None:
        super().__init__(node, controllers)

    def fill(self) -> None:
        self.version = self.places.versions["memory"]
        (self.ls,) = self.add_pod("ls", be=False)
        (self.be,) = self.add_pod("be")
        for pod, resource in zip(self.node.pods, ("memory", "kubernetes.io/batch-memory"), strict=True):
            (container,) = pod["spec"]["containers"]
            container["resources"] = {"requests": {resource: REQUEST}, "limits": {resource: 2 * REQUEST}}
        self.kubepods = self.node.path / "kubepods"

    def annotate(self, name: str, own: object) -> None:
        (pod,) = [each for each in self.node.pods if each["metadata"]["name"] == name]
        pod["metadata"]["annotations"] = {"koordinator.sh/memoryQOS": own if isinstance(own, str) else json.dumps(own)}

    def texts(self) -> dict[str, str]:
        """Return what every file holds that memory QoS may write."""
        files = [SOFT] if self.version == 1 else [MIN, LOW, HIGH, CgroupFile.MEMORY_OOM_GROUP]
        levels = [self.kubepods, *self.kubepods.rglob("*/")]
        return {str(self.file(each, file)): self.file(each, file).read_text() for each in levels for file in files}

    def arguments(self, folder: Path, *, gate: bool = True, soft: bool = True, **classes: Any) -> tuple[object, ...]:
        return self.agent_arguments(
            self.write(folder, **classes),
            strategies={"memoryQos": {"softLimits": soft}},
            featureGates={"BECPUSuppress": False, "BEMemoryEvict": False, "CgroupReconcile": gate},
        )

    def write(self, folder: Path, **classes: Mapping[str, object]) -> Path:
        """Write the pods as they are now, and a NodeSLO with memoryQOS of these classes; `ls` as above by default."""
        strategy = {f"{name}Class": {"memoryQOS": each} for name, each in (classes or {"ls": LS}).items()}
        return self.write_manifest(folder, resourceQOSStrategy=strategy)

    def is_protected(self) -> bool:
        """Tell whether each file holds what `LS` and the requests come to."""
        pod, be = self.node.pod_paths["ls"], self.node.pod_paths["be"]
        if self.version == 1:
            return [self.value(each, SOFT) for each in (pod, self.ls, be)] == [REQUEST // 2, None, 0]
        levels = (self.kubepods, self.kubepods / "burstable", pod, self.ls)
        return (
            [self.value(each, MIN) for each in levels] == [REQUEST // 4] * 4
            and [self.value(each, LOW) for each in levels] == [REQUEST // 2] * 4
            and self.value(self.ls, HIGH) == REQUEST * 3 // 2
            and self.value(be, LOW) == 0
        )
