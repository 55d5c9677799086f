"""Runtime hooks: what they cost a node that does not change, and how soon a new pod has its limits."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from koordebpf.act.writer.places import Places
from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from tests.bench.figure import figure
from tests.bench.nodes import full_node
from tests.bench.report import CannotMeasure, Report
from tests.bench.steady import watch_cost
from tests.host.rigs.live_node import LiveNode
from tests.support.agent_process import AgentProcess
from tests.support.nodes import MIB, NodeCgroup

_PODS, _CONTAINERS = 110, 330
_WARM_S = 20  # the pods have their values: 16 of them a second
_BATCH = {"kubernetes.io/batch-cpu": 500, "kubernetes.io/batch-memory": 64 * MIB}
_OFF = "BECPUSuppress=false"
_ON = f"{_OFF},BatchResource=true,CPUSetAllocator=true,GroupIdentity=true,CPUNormalization=true,OOMScoreAdj=true"


def hooks(report: Report) -> None:
    """Watch an agent with all gates off and one with them on, then add pods one by one."""
    seconds = 15 if report.quick else 60
    for gates, name in ((_OFF, "hooks off"), (_ON, "hooks on")):
        report.say(f"{_PODS} pods / {_CONTAINERS} containers, {name}, for {seconds} s")
        with full_node(_PODS, _CONTAINERS) as node, tempfile.TemporaryDirectory() as folder:
            _ask_for_batch(node.cgroup)
            try:
                live = LiveNode(node.cgroup)
            except (KeyError, SupportError, OSError) as error:
                raise CannotMeasure(f"needs cpu and cpuset hierarchies that can be written: {error}") from None
            try:
                manifest = node.cgroup.write_manifest(Path(folder) / "pods.json", 70, 65)
                with AgentProcess(node.cgroup, manifest, "--feature-gates", gates) as agent:
                    time.sleep(_WARM_S)
                    watch_cost(report, agent.pid, f"{_PODS} pods, {name}", seconds, 1.0, 60)
                    if gates == _ON:
                        _watch_new_pods(report, node.cgroup, manifest, 3 if report.quick else 20)
            finally:
                live.close()


def _ask_for_batch(node: NodeCgroup) -> None:
    for pod in node.pods:
        if pod["metadata"]["labels"]["koordinator.sh/qosClass"] == "BE":
            for container in pod["spec"]["containers"]:
                container["resources"] = {"requests": _BATCH, "limits": _BATCH}


# Of the memory hierarchy alone: the others have no directory for it.
def _watch_new_pods(report: Report, node: NodeCgroup, manifest: Path, count: int) -> None:
    places, samples = Places(find_controllers()), []
    mount = places.locate(("", CgroupFile.MEMORY_LIMIT))
    assert mount is not None
    for number in range(count):
        time.sleep(1.3)
        (container,) = node.add_pod(f"new-{number}")
        _ask_for_batch(node)
        file = container / mount.name
        node.write_manifest(manifest, 70, 65)
        began = time.monotonic()
        while file.read_text().strip() != str(64 * MIB):
            if time.monotonic() - began > 20:
                raise RuntimeError(f"{file} has no limit after 20 s")
            time.sleep(0.01)
        samples.append((time.monotonic() - began) * 1e3)
    method = "the pod's list is written until its container's memory limit is"
    report.add(figure("a new pod until it is limited", "ms", samples, method))
