"""How long a container runtime waits for the agent's answer before it creates a container."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
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


# What the machine itself takes: the same thread in a process that has no other.
_ALONE = """
import os, sys, time
from koordebpf.kube.nri.plugin import NriPlugin
from koordebpf.kube.runtime_settings import NriSettings
from koordebpf.kube.nri.values import Answer, NriResources

class Answers:
    def pod_started(self, pod): pass
    def pod_removed(self, pod): pass
    def container(self, pod, container): return Answer(NriResources(cpu_shares=512))

os.setpriority(os.PRIO_PROCESS, 0, -20)
NriPlugin(NriSettings(socket=sys.argv[1]), Answers())
time.sleep(3600)
"""


def nri(report: Report) -> None:
    """Ask for containers of a batch pod through containerd's library, idle, then beside storms and kills."""
    kills = 3 if report.quick else 20
    with full_node() as node, tempfile.TemporaryDirectory(dir=TMPFS, prefix="nri-") as name:
        folder = Path(name)
        config, audit = folder / "config.yaml", folder / "audit.jsonl"
        config.write_text(_CONFIG.format(folder / "nri.sock"))
        manifest = node.cgroup.write_manifest(folder / "pods.json", _PERCENT, _PERCENT - 2)
        gates = "--feature-gates", "BatchResource=true,CPUSetAllocator=true,GroupIdentity=true"
        with ExitStack() as stack:
            try:
                runtime, other = (
                    stack.enter_context(NriRuntime(folder / socket, pods=110, before=_FIRST))
                    for socket in ("nri.sock", "other.sock")
                )
            except CannotHave as error:
                raise CannotMeasure(str(error)) from None
            alone = subprocess.Popen([sys.executable, "-c", _ALONE, str(folder / "other.sock")])
            stack.callback(alone.wait)
            stack.callback(alone.kill)
            given = (node.cgroup, manifest, "--config", str(config), *gates)
            agent = stack.enter_context(AgentProcess(*given, audit=audit))
            for each in (runtime, other):
                each.wait_for(_PLUGIN)
                _ask(each, 50)
            _measure(report, node, agent, (runtime, other), kills)


def _measure(
    report: Report, node: FullNode, agent: AgentProcess, runtimes: tuple[NriRuntime, NriRuntime], kills: int
) -> None:
    method = (
        "CreateContainer of containerd/nri's adaptation, nice -20, 20 each 5 ms in turns with the other; a batch pod's"
        " container with 30 variables and 10 mounts; 110 pods, three hooks on"
    )
    load = f"a reclaim storm in each of two pods, {kills} hogs of 0.6 GiB killed one after the other"
    other = "a thread alone in its process, which decides nothing"
    idle: tuple[list[float], list[float]] = ([], [])
    for _ in range(10 if report.quick else 100):
        _ask_both(runtimes, idle)
    report.add(figure("NRI answer, idle", "ms", idle[0], method, reach_p99=2))
    report.add(figure("what the machine takes of it, idle", "ms", idle[1], other))
    busy, evicted = _while_killing(node, agent, runtimes, kills)
    report.add(figure("NRI answer, under pressure and kills", "ms", busy[0], f"{method}; {load}", reach_p99=5))
    report.add(figure("what the machine takes of it, under pressure", "ms", busy[1], other))
    report.add(at_most("kills that the hogs lacked", "", kills - evicted, 0, "lines of the audit"))


def _ask_both(runtimes: tuple[NriRuntime, NriRuntime], into: tuple[list[float], list[float]]) -> None:
    for runtime, took in zip(runtimes, into, strict=True):
        took.extend(_ask(runtime, 20))


def _ask(runtime: NriRuntime, times: int) -> list[float]:
    answer: dict[str, Any] = runtime.ask("create", POD, CONTAINER, times=times, pause_us=5000)
    assert answer["response"]["adjust"]["linux"]["resources"]["cpu"]["shares"]["value"] == "512", answer
    return [us / 1000 for us in answer["us"]]


def _while_killing(
    node: FullNode, agent: AgentProcess, runtimes: tuple[NriRuntime, NriRuntime], kills: int
) -> tuple[tuple[list[float], list[float]], int]:
    is_over = threading.Event()
    took: tuple[list[float], list[float]] = ([], [])

    def ask() -> None:
        while not is_over.is_set():
            _ask_both(runtimes, took)

    asking = threading.Thread(target=ask)
    storms: list[Storm] = []
    if can_count():
        pods = list(node.cgroup.pod_paths.values())[1:2]
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
            time.sleep(0.5)
    finally:
        is_over.set()
        asking.join()
        for each in storms:
            each.stop()
    return took, len(agent.evictions())
