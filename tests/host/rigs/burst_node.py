"""A node with pods of either side that sleep until a signal makes them use all the CPU they get."""

from __future__ import annotations

import os
from pathlib import Path

from koordebpf.kernel.cgroup.files import CgroupFile
from tests.host.rigs.live_node import LiveNode
from tests.support.loads.ping_pong import Worker


class BurstNode(LiveNode):
    """A best-effort pod and a latency-sensitive one, with a worker for each CPU."""

    def fill(self) -> None:
        (be,), (ls,) = self.add_pod("be"), self.add_pod("ls", be=False)
        self.best_effort, self.workers = self._works(be), self._works(ls)

    def _works(self, container: Path) -> list[Worker]:
        made = []
        for _ in os.sched_getaffinity(0):
            made.append(Worker())
            self._ending.callback(made[-1].close)
            self.hierarchies.join(container, made[-1].process.pid)
        return made

    def arguments(self, folder: Path, *, min_percent: int | None = None, **wake: object) -> tuple[object, ...]:
        """Return what the agent needs to hold it by quota, woken as given."""
        strategy: dict[str, object] = {"cpuSuppressThresholdPercent": 65, "cpuSuppressPolicy": "cfsQuota"}
        strategy |= {} if min_percent is None else {"cpuSuppressMinPercent": min_percent}
        manifest = self.write_manifest(folder, resourceUsedThresholdWithBE=strategy)
        return self.agent_arguments(manifest, "--enforce", wake=wake)

    def quota_us(self) -> int:
        quota = self.value(self.node.path / "kubepods/besteffort", CgroupFile.CPU_QUOTA)
        return quota if isinstance(quota, int) else -1
