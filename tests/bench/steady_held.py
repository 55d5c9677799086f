"""What the agent costs while best-effort pods are held and nothing changes: every cpuset is looked after."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from koordebpf.errors import SupportError
from tests.agent_process import AgentProcess
from tests.bench.nodes import full_node
from tests.bench.report import CannotMeasure, Report
from tests.bench.steady import watch_cost
from tests.host.held_node import CpuFiles, with_strategy

_PODS, _CONTAINERS = 110, 330
_WARM_S = 12  # the writer has looked at every file


def steady_held(report: Report) -> None:
    """Hold a node's best-effort pods by cpuset, then by quota, and watch the agent's own cost for a minute each."""
    seconds = 15 if report.quick else 60
    for policy in ("cpuset", "cfsQuota"):
        size = f"{_PODS} pods / {_CONTAINERS} containers, held by {policy}"
        report.say(f"{size} for {seconds} s")
        with full_node(_PODS, _CONTAINERS) as node, tempfile.TemporaryDirectory() as name:
            try:
                files = CpuFiles(node.cgroup)
            except (KeyError, SupportError, OSError) as error:
                raise CannotMeasure(f"needs cpu and cpuset hierarchies that can be written: {error}") from None
            try:
                manifest = node.cgroup.write_manifest(Path(name) / "pods.json", 70, 65)
                with_strategy(manifest, {"cpuSuppressThresholdPercent": 65, "cpuSuppressPolicy": policy})
                with AgentProcess(node.cgroup, manifest, audit=Path(name) / "audit.jsonl") as agent:
                    time.sleep(_WARM_S)
                    written = _lines(Path(name) / "audit.jsonl")
                    watch_cost(report, agent.pid, size, seconds, 0.5, 60)
                    if more := _lines(Path(name) / "audit.jsonl") - written:
                        raise RuntimeError(f"{more} writes while nothing changed")
            finally:
                files.close()


def _lines(audit: Path) -> int:
    return audit.read_bytes().count(b"\n") if audit.exists() else 0
