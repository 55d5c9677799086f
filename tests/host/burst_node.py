"""A node with pods of either side that sleep until a signal makes them use all the CPU they get."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.host.held_node import CpuFiles, with_strategy
from tests.support.loads.ping_pong import Worker
from tests.support.nodes import NodeCgroup


class BurstNode:
    """A best-effort pod and a latency-sensitive one, with a worker for each CPU."""

    def __init__(self, node: NodeCgroup) -> None:
        self.node = node
        (be,), (ls,) = node.add_pod("be"), node.add_pod("ls", be=False)
        self.files = CpuFiles(node)
        cpus = len(os.sched_getaffinity(0))
        self.best_effort = [Worker() for _ in range(cpus)]
        self.workers = [Worker() for _ in range(cpus)]
        for pod, workers in ((be, self.best_effort), (ls, self.workers)):
            for worker in workers:
                self.files.join(pod, worker.process.pid)

    def arguments(self, folder: Path, *, min_percent: int | None = None, **wake: object) -> tuple[object, ...]:
        """Return what the agent needs to hold it by quota, woken as given."""
        manifest = folder / "pods.json"
        self.node.write_manifest(manifest)
        strategy = {"cpuSuppressThresholdPercent": 65, "cpuSuppressPolicy": "cfsQuota"}
        with_strategy(manifest, strategy | ({} if min_percent is None else {"cpuSuppressMinPercent": min_percent}))
        config = folder / "agent.json"
        config.write_text(
            json.dumps({"apiVersion": "koordebpf.io/v1alpha1", "kind": "AgentConfiguration", "wake": wake})
        )
        return "--config", config, "--pods", manifest, "--node-cgroup", self.node.path, "--enforce"

    def quota_us(self) -> int:
        quota = self.files.quota_file.read_text().split()[0]
        return -1 if quota == "max" else int(quota)

    def close(self) -> None:
        for worker in (*self.best_effort, *self.workers):
            worker.close()
        self.files.close()
