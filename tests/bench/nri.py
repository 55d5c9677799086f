"""How long a container runtime waits for the agent's answer before it creates a container."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.bench.figure import at_most, figure
from tests.bench.nodes import TMPFS, FullNode, full_node
from tests.bench.report import CannotMeasure, Report
from tests.cluster.binaries import CannotHave
from tests.support.agent_process import AgentProcess
from tests.support.loads.storms import Storm, can_count
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB
from tests.support.nri_adaptation import NriRuntime

_PLUGIN = "00-koordebpf"
_PERCENT = 10  # of 6 GiB: a hog of 0.6 GiB is above it
_AMOUNTS = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"}
_SPEC = {"containers": {"main": {"requests": _AMOUNTS, "limits": _AMOUNTS}}}
POD = {
    "id": "s",
    "name": "batch",
    "uid": "u-1",
    "namespace": "team",
    "labels": {"koordinator.sh/qosClass": "BE"},
    "annotations": {"node.koordinator.sh/extended-resource-spec": json.dumps(_SPEC)},
    "linux": {"cgroupParent": "/kubepods/besteffort/podu-1"},
}
CONTAINER = {
    "id": "c",
    "name": "main",
    "env": [f"NAME_{number}=value" for number in range(30)],
    "mounts": [{"source": f"/a/{number}", "destination": f"/b/{number}"} for number in range(10)],
    "linux": {"resources": {"cpu": {"shares": {"value": 2}}}},
}
_CONFIG = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
nri:
  enabled: true
  backoff: 50ms
  socket: {}
"""
# Its own waits for a CPU are the runtime's, not the answer's.
_FIRST = ("nice", "-n", "-20")


def nri(report: Report) -> None:
    """Ask for containers of a batch pod through containerd's library, idle, then beside storms and kills."""
    kills = 3 if report.quick else 20
    with full_node() as node, tempfile.TemporaryDirectory(dir=TMPFS, prefix="nri-") as name:
        folder = Path(name)
        socket, audit = folder / "nri.sock", folder / "audit.jsonl"
        config = folder / "config.yaml"
        config.write_text(_CONFIG.format(socket))
        manifest = node.cgroup.write_manifest(folder / "pods.json", _PERCENT, _PERCENT - 2)
        gates = "--feature-gates", "BatchResource=true,CPUSetAllocator=true,GroupIdentity=true"
        try:
            runtime = NriRuntime(socket, pods=110, before=_FIRST)
        except CannotHave as error:
            raise CannotMeasure(str(error)) from None
        with runtime, AgentProcess(node.cgroup, manifest, "--config", str(config), *gates, audit=audit) as agent:
            runtime.wait_for(_PLUGIN)
            _ask(runtime, 50)
            method = (
                "CreateContainer of containerd/nri's adaptation, nice -20, one each 5 ms; a batch pod's container with"
                " 30 variables and 10 mounts; 110 pods, three hooks on"
            )
            idle = _ask(runtime, 200 if report.quick else 2000)
            report.add(figure("NRI answer, idle", "ms", idle, method, reach_p99=2))
            busy, evicted = _while_killing(node, agent, runtime, kills)
            load = f"a reclaim storm in each of two pods, {evicted} hogs of 0.6 GiB killed one after the other"
            report.add(figure("NRI answer, under pressure and kills", "ms", busy, f"{method}; {load}", reach_p99=5))
            report.add(at_most("kills that the hogs lacked", "", kills - evicted, 0, "lines of the audit"))


def _ask(runtime: NriRuntime, times: int) -> list[float]:
    answer: dict[str, Any] = runtime.ask("create", POD, CONTAINER, times=times, pause_us=5000)
    assert answer["response"]["adjust"]["linux"]["resources"]["cpu"]["shares"]["value"] == "512", answer
    return [us / 1000 for us in answer["us"]]


def _while_killing(node: FullNode, agent: AgentProcess, runtime: NriRuntime, kills: int) -> tuple[list[float], int]:
    is_over = threading.Event()
    took: list[float] = []

    def ask() -> None:
        while not is_over.is_set():
            took.extend(_ask(runtime, 20))

    asking = threading.Thread(target=ask)
    storms: list[Storm] = []
    if can_count():
        pods = list(node.cgroup.pod_paths.values())[1:3]
        storms = [Storm(next(each for each in pod.iterdir() if each.is_dir()), 600_000) for pod in pods]
    asking.start()
    try:
        for number in range(kills):
            hog = Hog(node.hog, node.threshold_bytes(_PERCENT) // MIB + 64, *node.hog_joins_too)
            try:
                agent.wait_for_eviction(number)
                hog.process.wait(30)
            finally:
                hog.stop()
            time.sleep(0.2)
    finally:
        is_over.set()
        asking.join()
        for each in storms:
            each.stop()
    return took, len(agent.evictions())
