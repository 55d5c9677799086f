"""A node whose pods runtime hooks are for, with the CPU files of every level."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.units import MIB
from tests.host.rigs.live_node import LiveNode
from tests.support.nodes import NodeCgroup

BATCH = {"kubernetes.io/batch-cpu": 500, "kubernetes.io/batch-memory": 64 * MIB}
SHARES, QUOTA, LIMIT = CgroupFile.CPU_SHARES, CgroupFile.CPU_QUOTA, CgroupFile.MEMORY_LIMIT
CPUS, IDLE = CgroupFile.CPUSET_CPUS, CgroupFile.CPU_IDLE


class HookNode(LiveNode):
    """A best-effort pod `be` of two containers that ask for batch resources, and a pod `lsr` bound to CPU 0."""

    def __init__(self, node: NodeCgroup) -> None:
        super().__init__(node, levels=None)

    def fill(self) -> None:
        self.be = self.add_pod("be", containers=2)
        for each in self.node.pods[0]["spec"]["containers"]:
            each["resources"] = {"requests": BATCH, "limits": BATCH}
        status = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": "0"})}
        self.lsr = self.add_pod("lsr", be=False, annotations=status)
        self.node.pods[1]["metadata"]["labels"]["koordinator.sh/qosClass"] = "LSR"
        self.node.pods[1]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}

    def texts(self, files: Iterable[tuple[Path, CgroupFile]]) -> list[str]:
        return [self.file(directory, file).read_text() for directory, file in files]

    def pod(self, name: str) -> Path:
        return self.node.pod_paths[name]

    def arguments(self, folder: Path, gates: str, **fields: Any) -> tuple[object, ...]:
        return self.agent_arguments(self.write(folder, **fields), "--feature-gates", gates)

    def write(self, folder: Path, **fields: Any) -> Path:
        """Write the pods as they are now, and a NodeSLO with these fields of resourceUsedThresholdWithBE."""
        return self.write_manifest(folder, resourceUsedThresholdWithBE=fields)
