"""What the agent costs while best-effort pods are held and nothing changes: every cpuset is looked after.

And what it costs while others want more CPU than there is all the time, which wakes it again and again.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from koordebpf.errors import SupportError
from tests.bench.nodes import full_node
from tests.bench.report import CannotMeasure, Report
from tests.bench.steady import PERF_S, watch_cost
from tests.host.rigs.live_node import BURN, LiveNode, with_strategy
from tests.support.agent_process import AgentProcess

_PODS, _CONTAINERS = 110, 330
_WARM_S = 12  # the writer has looked at every file


def steady_held(report: Report) -> None:
    """Hold a node's best-effort pods in each way, and watch the agent's own cost for a minute each."""
    seconds = 15 if report.quick else 60
    for policy, waits in (("cpuset", False), ("cfsQuota", False), ("cfsQuota", True)):
        size = f"{_PODS} pods / {_CONTAINERS} containers, held by {policy}{', others wait' if waits else ''}"
        report.say(f"{size} for {seconds} s")
        with full_node(_PODS, _CONTAINERS) as node, tempfile.TemporaryDirectory() as name:
            try:
                live = LiveNode(node.cgroup)
            except (KeyError, SupportError, OSError) as error:
                raise CannotMeasure(f"needs cpu and cpuset hierarchies that can be written: {error}") from None
            try:
                if waits:
                    _burn(live)
                manifest = node.cgroup.write_manifest(Path(name) / "pods.json", 70, 65)
                with_strategy(manifest, {"cpuSuppressThresholdPercent": 65, "cpuSuppressPolicy": policy})
                with AgentProcess(node.cgroup, manifest, audit=Path(name) / "audit.jsonl") as agent:
                    time.sleep(_WARM_S)
                    written = _lines(Path(name) / "audit.jsonl")
                    watch_cost(report, agent.pid, size, seconds, 0.5, 60)
                    more = _lines(Path(name) / "audit.jsonl") - written
                    # What others get of the CPUs changes with the machine's other loads, and the quota follows it.
                    if more > (seconds + PERF_S + 1 if waits else 0):
                        raise RuntimeError(f"{more} writes in {seconds} s{'' if waits else ', and nothing changed'}")
            finally:
                live.close()


# Two for each CPU in a pod that is not best-effort: one of them always waits.
def _burn(live: LiveNode) -> None:
    (container, *_) = (path for path in live.node.pod_paths["pod-1"].iterdir() if path.is_dir())
    for _ in range(2 * len(os.sched_getaffinity(0))):
        live.start(container, *BURN)


def _lines(audit: Path) -> int:
    return audit.read_bytes().count(b"\n") if audit.exists() else 0
