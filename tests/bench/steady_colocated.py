"""What the agent costs in koordlet's place, while nothing happens."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.bench.nodes import full_node
from tests.bench.report import Report
from tests.bench.steady import watch_cost
from tests.support.agent_process import AgentProcess

_WARM_S = 15
_GATES = (
    *("UsageSeries", "PSICollector", "PeakPrediction", "NodeMetricReport", "NodeTopologyReport"),
    *("BatchResource", "CPUSetAllocator", "GroupIdentity", "CPUNormalization", "OOMScoreAdj"),
)
COLOCATED = ("--feature-gates", ",".join(f"{each}=true" for each in _GATES))


def steady_colocated(report: Report) -> None:
    """Watch the agent's own cost on nodes of two sizes, 120 s each; reports are rendered, pods come from a file."""
    seconds = 15 if report.quick else 120
    for pods, containers, cpu_percent, rss_mib in ((110, 330, 1.0, 60), (500, 1000, 3, 90)):
        size = f"{pods} pods / {containers} containers"
        report.say(f"{size} for {seconds} s")
        with full_node(pods, containers) as node, tempfile.TemporaryDirectory() as name:
            manifest = node.cgroup.write_manifest(Path(name) / "pods.json", 70, 65)
            audit = Path(name) / "audit.jsonl"
            with AgentProcess(node.cgroup, manifest, *COLOCATED, audit=audit) as agent:
                time.sleep(_WARM_S)
                watch_cost(report, agent.pid, f"in koordlet's place, {size}", seconds, cpu_percent, rss_mib, 400)
