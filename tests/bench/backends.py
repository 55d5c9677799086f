"""What each backend costs: until it hears the first event, and in memory while the agent runs on it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from koordebpf.kernel.signals import BackendName
from tests.bench.figure import at_most, figure
from tests.bench.nodes import FullNode, full_node
from tests.bench.report import CannotMeasure, Report
from tests.bench.steady import rollup_mib
from tests.host.live_agent import ROOT, LiveAgent

_BACKENDS: tuple[BackendName, ...] = ("co-re", "bcc", "files")
_REACH_MS: dict[BackendName, float] = {"co-re": 300}
_REACH_MB: dict[BackendName, float] = {"co-re": 60}
_WARM_S = 3
_MB_PER_MIB = 1.048576
_NS_PER_MS = 1_000_000

# What is timed, in a process of its own: from the call, with all imports done, to the decoded record of a mkdir.
_PROGRAM = """
import select, sys, time
from pathlib import Path
from koordebpf.collect.scope import open_scope
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.events.records import CgroupMkdir
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy

node, backend = sys.argv[1:]
scope = open_scope(find_memory_hierarchy(), Path(node))
started_ns = time.monotonic_ns()
with NodeWatch(scope, None, 0, backend=backend) as watch:
    opened = time.monotonic_ns()
    poll = select.poll()
    poll.register(watch.signals.fileno(), select.POLLIN)
    while not any(isinstance(record, CgroupMkdir) for record, _ in watch.drain()):
        poll.poll(1000)
    print(opened - started_ns, time.monotonic_ns() - started_ns)
"""


def backends(report: Report) -> None:
    """Open each of the backends and run the agent on it; one that does not work here is left out with its reason."""
    with full_node() as node, tempfile.TemporaryDirectory() as name:
        manifest = node.cgroup.write_manifest(Path(name) / "pods.json")
        for backend in _BACKENDS:
            try:
                _start(report, node, backend)
            except CannotMeasure as error:
                report.cannot(f"backend {backend}: {error}")
                continue
            _agent(report, node, manifest, Path(name), backend)


def _start(report: Report, node: FullNode, backend: BackendName) -> None:
    n = 5 if report.quick else 30
    opened, heard = [], []
    for _ in range(min(n, 5) if backend == "bcc" else n):
        open_ms, first_ms = _first_event(node, backend)
        opened.append(open_ms)
        heard.append(first_ms)
    method = "in a fresh process after its imports, 330 containers; a cgroup is born each millisecond"
    report.add(figure(f"{backend}: load, attach, first walk", "ms", opened, method))
    report.add(
        figure(f"{backend}: the same and the first event", "ms", heard, method, reach_p99=_REACH_MS.get(backend))
    )


def _first_event(node: FullNode, backend: BackendName) -> tuple[float, float]:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(node.cgroup.path), backend],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    newborn = node.cgroup.path / "newborn"
    while process.poll() is None:
        newborn.mkdir()
        newborn.rmdir()
        time.sleep(0.001)
    out, err = process.communicate()
    if process.returncode:
        raise CannotMeasure(err.strip().splitlines()[-1] if err.strip() else f"exit code {process.returncode}")
    open_ns, first_ns = (int(number) for number in out.split())
    return open_ns / _NS_PER_MS, first_ns / _NS_PER_MS


def _agent(report: Report, node: FullNode, manifest: Path, folder: Path, backend: BackendName) -> None:
    given = ("--pods", manifest, "--node-cgroup", node.cgroup.path, "--backend", backend)
    with LiveAgent(folder, *given, keeps_frames=False) as agent:
        agent.becomes_ready()
        time.sleep(_WARM_S)
        resident = rollup_mib(agent.process.pid)["Rss"] * _MB_PER_MIB
        children = len(psutil.Process(agent.process.pid).children(recursive=True))
    method = "koordebpf run, 110 pods / 330 containers, smaps_rollup"
    report.add(at_most(f"{backend}: resident memory of the agent", "MB", resident, _REACH_MB.get(backend), method))
    report.add(at_most(f"{backend}: child processes of the agent", "", children, 0, "once it is ready"))
