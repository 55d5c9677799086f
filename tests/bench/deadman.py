"""An agent that is stopped while a node thrashes: what its dead man's switch does."""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path

from koordebpf.kernel.bpf.deadman import support_of_dead_man
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from tests.bench.figure import figure
from tests.bench.report import CannotMeasure, Report
from tests.host.live_agent import LiveAgent
from tests.host.rigs.thrashing_node import ThrashingNode
from tests.support.patience import patience

_CONFIG = "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\ndeadMan: {action: kill}\n"


def deadman(report: Report) -> None:
    """Stop an agent, n = 20, and let its node thrash until the best-effort pod is dead."""
    if not (support := support_of_dead_man()).works:
        raise CannotMeasure(support.reason)
    n = 3 if report.quick else 20
    took = [_once() for _ in range(n)]
    survived = [ms for ms in took if ms is not None]
    report.add(
        figure(
            f"agent stopped, node thrashes → best-effort pod dead; survived {len(survived)} of {n}",
            "ms",
            survived,
            "from SIGSTOP, and 150 MiB more asked for at once, until no process of the pod is left; node cgroup of"
            " 256 MiB, threshold 60 %, heartbeat late after 500 ms; survived: no other process was killed",
        )
    )


# None: another process died, or the pod did not.
def _once() -> float | None:
    with tempfile.TemporaryDirectory() as name, ThrashingNode(find_memory_hierarchy()) as thrashing:
        folder = Path(name)
        (folder / "config.yaml").write_text(_CONFIG)
        manifest = thrashing.write_manifest(folder)
        arguments = ["--config", folder / "config.yaml", "--pods", manifest, "--node-cgroup", thrashing.node.path]
        with LiveAgent(folder, *arguments, "--executor", "cgroup", "--enforce", keeps_frames=False) as agent:
            agent.started()
            while agent.metric("koordebpf_dead_man_armed") != 1:
                time.sleep(0.05)
            thrashing.starts_walking()
            agent.process.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            thrashing.grows()
            try:
                thrashing.dies(patience(30))
            except TimeoutError:
                return None
            took = time.monotonic() - began
            return took * 1000 if thrashing.has_survived else None
