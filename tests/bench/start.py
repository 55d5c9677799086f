"""From the start of the process to the first event."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.figure import figure
from tests.bench.nodes import FullNode, full_node
from tests.bench.report import Report
from tests.support.agent_process import AgentProcess

# What the interpreter runs: the command line itself, with the time of its first statement and after its imports.
_COMMAND = """
import sys, time
up = time.monotonic_ns()
from koordebpf.cli import main
import koordebpf.cli.trace, koordebpf.collect.node_watch, koordebpf.tools.trace.follow, koordebpf.report.record_line
print(up, time.monotonic_ns(), file=sys.stderr, flush=True)
main(sys.argv[1:])
"""
_NS_PER_MS = 1_000_000


def start(report: Report) -> None:
    """Start `koordebpf trace` while cgroups are born all the time, and `koordebpf run`."""
    n = 5 if report.quick else 30
    spans: dict[str, list[float]] = {}
    with full_node() as node, tempfile.TemporaryDirectory() as name:
        manifest = node.cgroup.write_manifest(Path(name) / "pods.json")
        for _ in range(n):
            for span, value in _trace_once(node, manifest).items():
                spans.setdefault(span, []).append(value)
        for span, samples in spans.items():
            is_goal = span.startswith("Python up →")
            method = "koordebpf trace --json --count 1, 110 pods, a cgroup born each millisecond"
            report.add(figure(f"start: {span}", "ms", samples, method, reach_p99=300 if is_goal else None))
        agents = [_run_once(node, manifest) for _ in range(n)]
        report.add(figure("start: process → agent says it watches", "ms", agents, "koordebpf run, its first log line"))


def _trace_once(node: FullNode, manifest: Path) -> dict[str, float]:
    trace = ["trace", "--json", "--count", "1", "--kind", "cgroup_mkdir"]
    trace += ["--pods", str(manifest), "--node-cgroup", str(node.cgroup.path)]
    started = time.monotonic_ns()
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, *trace], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    newborn = node.cgroup.path / "newborn"
    while process.poll() is None:
        newborn.mkdir()
        newborn.rmdir()
        time.sleep(0.001)
    ended = time.monotonic_ns()
    out, err = process.communicate()
    times = re.search(r"^(\d+) (\d+)$", err, re.MULTILINE)
    if process.returncode or not times:
        raise RuntimeError(f"koordebpf trace ended with {process.returncode}: {err}")
    up, imported = (int(text) for text in times.groups())
    event = json.loads(out)
    received = ended
    moments = {
        "process → interpreter up": (started, up),
        "imports": (up, imported),
        "imports → first event in the ring": (imported, event["ts_ns"]),
        "first event in the ring → printed, process ended": (event["ts_ns"], received),
        "Python up → first event printed": (imported, received),
    }
    return {span: (end - begin) / _NS_PER_MS for span, (begin, end) in moments.items()}


def _run_once(node: FullNode, manifest: Path) -> float:
    with AgentProcess(node.cgroup, manifest) as agent:
        return (agent.up_ns - agent.started_ns) / _NS_PER_MS
