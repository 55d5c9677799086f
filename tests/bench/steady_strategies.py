"""What all QoS strategies cost together while they have nothing to change, and a NodeSLO until its last file."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from koordebpf.errors import SupportError
from koordebpf.units import NS_PER_S
from tests.bench.api_server import NODE, ApiServer
from tests.bench.figure import at_most, figure
from tests.bench.nodes import FullNode, full_node
from tests.bench.report import CannotMeasure, Report
from tests.bench.steady import cpu_s, rollup_mib
from tests.host.rigs.live_node import CONTROLLERS, LiveNode
from tests.support.agent_process import AgentProcess
from tests.support.loop_disk import LoopDisk
from tests.support.nodes import MIB, NodeCgroup

_PODS, _CONTAINERS = 110, 330
_TURNS = 3
_WARM_S = 20  # a round writes 16 pods at most
_GATES = (
    *("CgroupReconcile", "CPUBurst", "BlkIOReconcile", "RdtResctrl", "SystemConfig", "ProactiveReclaim"),
    *("BatchResource", "CPUSetAllocator", "GroupIdentity", "CPUNormalization", "OOMScoreAdj", "BEPageCacheSuppress"),
)
_LS = {"cpu": "500m", "memory": "64Mi"}
_BE = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"}
_CHANGED = " → "  # a line of the log says so of a file
_CONFIG = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
strategies: {memoryQos: {softLimits: true}}
featureGates: {%s}
"""


def steady_strategies(report: Report) -> None:
    """Watch agents with the strategies on and off, in turn; then change a NodeSLO again and again."""
    with _whole_node() as (node, disk), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(_CONFIG % ", ".join(f"{gate}: true" for gate in _GATES))
        manifest = _write(node.cgroup, folder / "pods.json", _slo(disk, 60))
        _cost(report, node, folder, manifest)
        _change(report, node, folder, disk)


@contextlib.contextmanager
def _whole_node() -> Iterator[tuple[FullNode, str]]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        disk = stack.enter_context(LoopDisk(folder))
        node = stack.enter_context(full_node(_PODS, _CONTAINERS))
        for pod in node.cgroup.pods:
            asked = _BE if pod["metadata"]["labels"]["koordinator.sh/qosClass"] == "BE" else _LS
            for container in pod["spec"]["containers"]:
                container["resources"] = {"requests": asked, "limits": asked}
        try:
            stack.enter_context(LiveNode(node.cgroup, (*CONTROLLERS, "blkio", "io")))
        except (KeyError, SupportError, OSError) as error:
            raise CannotMeasure(f"needs hierarchies of cpu, cpuset and blkio that can be written: {error}") from None
        yield node, disk.path


def _slo(disk: str, percent: int) -> dict[str, Any]:
    memory = {"enable": True, "minLimitPercent": percent, "lowLimitPercent": percent + 10, "throttlingPercent": 80}
    blocks = [{"name": disk, "type": "device", "ioCfg": {"writeBPS": percent * MIB}}]
    return {
        "resourceQOSStrategy": {
            "lsClass": {"memoryQOS": memory, "cpuQOS": {"enable": True, "groupIdentity": 2}},
            "beClass": {
                "memoryQOS": memory,
                "cpuQOS": {"enable": True, "groupIdentity": -1},
                "blkioQOS": {"enable": True, "blocks": blocks},
                "resctrlQOS": {"enable": True, "catRangeEndPercent": 30},
            },
        },
        "cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": 1000, "sharePoolThresholdPercent": 100},
        "systemStrategy": {"watermarkScaleFactor": 10},
    }


def _write(node: NodeCgroup, manifest: Path, slo: dict[str, Any]) -> Path:
    part = manifest.with_suffix(".list")
    written = json.loads(node.write_manifest(part, 90, 85).read_text())
    written["items"][-1]["spec"] |= slo
    part.write_text(json.dumps(written))
    return part.rename(manifest)


def _cost(report: Report, node: FullNode, folder: Path, manifest: Path) -> None:
    seconds = 10 if report.quick else 60
    cpu: dict[bool, float] = {False: 0, True: 0}
    memory: dict[bool, list[float]] = {False: [], True: []}
    writes = 0
    # In turn, so that what else the machine does is in both.
    for is_on in (False, True) * _TURNS:
        more = ("--config", str(folder / "config.yaml")) if is_on else ()
        with AgentProcess(node.cgroup, manifest, *more, audit=folder / "audit.jsonl") as agent:
            time.sleep(_WARM_S)
            said, before, began_s = len(agent.log), cpu_s(agent.pid), time.monotonic()
            time.sleep(seconds)
            cpu[is_on] += (cpu_s(agent.pid) - before) * seconds / (time.monotonic() - began_s)
            memory[is_on].append(rollup_mib(agent.pid)["Rss"])
            if is_on:
                report.say(f"{said} lines until it had nothing to change, {len(agent.log) - said} after that")
                writes += sum(_CHANGED in line for line in agent.log[said:])
    method = f"{_TURNS} agents with {len(_GATES)} gates on, {_TURNS} without; {seconds} s each, in turn; {_PODS} pods"
    percent = 100 * (cpu[True] - cpu[False]) / (seconds * _TURNS)
    report.add(at_most("all QoS strategies, nothing to change: CPU", "%core", percent, 0.3, method))
    report.add(at_most("  files written", "", writes, 0, method))
    more_mib = min(memory[True]) - min(memory[False])
    report.add(at_most("  memory", "MiB", more_mib, None, f"Rss, the least of {_TURNS} each"))


# On cgroup v1 the files that follow the percentage are soft limits and those of block IO.
def _change(report: Report, node: FullNode, folder: Path, disk: str) -> None:
    n = 3 if report.quick else 30
    took, files = [], 0
    pods = [_scheduled(pod) for pod in node.cgroup.pods]
    with ApiServer(folder, pods) as server:
        of_cluster = ("--source", "api", "--node-name", NODE, "--kubeconfig", str(server.kubeconfig))
        more = ("--config", str(folder / "config.yaml"), *of_cluster)
        with AgentProcess(node.cgroup, None, *more) as agent:
            server.ask(do="have_nodeslo", spec=_slo(disk, 60))
            time.sleep(_WARM_S)
            for number in range(n):
                said = len(agent.log)
                sent_ns = server.ask(do="have_nodeslo", spec=_slo(disk, 61 + number % 2))["sent_ns"]
                took.append((_last_change_ns(agent, said) - sent_ns) / 1e6)
                files = sum(_CHANGED in line for line in agent.log[said:])
    method = f"the API server sends it until the last of {files} files is written, as the log says; {_PODS} pods"
    report.add(figure("NodeSLO changed → its last file", "ms", took, method, reach_p99=200))


def _scheduled(pod: dict[str, Any]) -> dict[str, Any]:
    metadata = {**pod["metadata"], "resourceVersion": "1"}
    return {**pod, "metadata": metadata, "spec": {**pod["spec"], "nodeName": NODE}}


def _last_change_ns(agent: AgentProcess, said: int) -> int:
    last_ns = seen_ns = time.monotonic_ns()
    seen = said
    while seen_ns - last_ns < 3 * NS_PER_S:
        time.sleep(0.001)
        seen_ns, lines = time.monotonic_ns(), len(agent.log)
        if any(_CHANGED in line for line in agent.log[seen:lines]):
            last_ns = seen_ns
        seen = lines
    if seen == said:
        raise RuntimeError("the NodeSLO changed no file:\n" + "\n".join(agent.log[-20:]))
    return last_ns
