"""What 5,000 PodDisruptionBudgets in the cluster add to an agent's memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.api_server import NODE, ApiServer, api_pod
from tests.bench.figure import at_most
from tests.bench.nodes import FullNode, full_node
from tests.bench.report import Report
from tests.bench.steady import rollup_mib

_PODS, _CONTAINERS, _BUDGETS, _BYTES = 110, 330, 5_000, 96 << 10
_SETTLED_S = 20.0  # all is listed, 200 of the budgets have changed
_KIB = 1024


def budgets(report: Report) -> None:
    """Compare agents: no budget, thousands of small ones, and as many of 96 KiB as an attacker would write."""
    runs = 1 if report.quick else 3
    with full_node(_PODS, _CONTAINERS) as full:
        without = [_memory(full, 0, 0) for _ in range(runs)]
        for size, where in ((0, "with a selector of one label"), (_BYTES, "of 96 KiB")):
            found = [_memory(full, _BUDGETS, size) for _ in range(runs)]
            name = f"{_BUDGETS} PodDisruptionBudgets {where}, {_PODS} pods: RSS"
            # The least of each: what else differs between two processes only adds.
            now, peak = (min(each[at] for each in found) - min(each[at] for each in without) for at in (0, 1))
            method = f"in the namespace of this node's pods; least of {runs}, against an agent without any"
            report.add(at_most(name, "MiB", now, 3, method))
            report.add(at_most("  the same at its largest, while they were listed", "MiB", peak, None, "VmHWM"))


# Of an agent that knows all it will know: RSS and its peak, MiB.
def _memory(full: FullNode, count: int, size: int) -> tuple[float, float]:
    pods = [api_pod(number, uid=mine["metadata"]["uid"]) for number, mine in enumerate(full.cgroup.pods)]
    with tempfile.TemporaryDirectory() as name, ApiServer(Path(name), pods) as server:
        server.ask(do="have_budgets", count=count, size=size, namespace="be")
        command = [sys.executable, "-m", "koordebpf", "run", "--source", "api", "--kubeconfig", str(server.kubeconfig)]
        command += ["--node-name", NODE, "--node-cgroup", str(full.cgroup.path), "--run-dir", name, "--listen", ""]
        agent = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            time.sleep(_SETTLED_S)
            if agent.poll() is not None:
                raise RuntimeError("the agent ended")
            status = Path(f"/proc/{agent.pid}/status").read_text()
            peak = next(int(line.split()[1]) / _KIB for line in status.splitlines() if line.startswith("VmHWM"))
            return rollup_mib(agent.pid)["Rss"], peak
        finally:
            agent.terminate()
            agent.wait()
