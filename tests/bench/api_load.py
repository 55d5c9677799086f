"""What an agent asks of a real API server while nothing happens on its node."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from tests.bench.figure import at_most
from tests.bench.nodes import GIB
from tests.bench.report import CannotMeasure, Report
from tests.cluster.binaries import CannotHave, obtain
from tests.cluster.control_plane import ControlPlane, control_plane
from tests.cluster.objects import AGENT, NAMESPACE, install, node, nodeslo, pod
from tests.support.nodes import NodeCgroup

_AGENTS = 3
_START_S = 10.0
_PAUSE_S = 20.0  # between two changes of a pod elsewhere
_USER = f"system:serviceaccount:{NAMESPACE}:{AGENT}"


def api_load(report: Report) -> None:
    """Run three agents beside kube-apiserver: in a cluster where pods change, and in one where nothing does."""
    seconds = 60 if report.quick else 120
    try:
        kubernetes = obtain(report.say).kubernetes
    except CannotHave as error:
        raise CannotMeasure(str(error)) from None
    with control_plane(kubernetes) as plane, ExitStack() as stack:
        install(plane.api)
        plane.api.create(node("far"))
        agents = [stack.enter_context(_agent(plane, f"n{number}")) for number in range(_AGENTS)]
        time.sleep(_START_S)
        for where, changes in (("pods elsewhere change", True), ("nothing changes in the cluster", False)):
            before, ends = _asked(plane), time.monotonic() + seconds
            _pass_time(plane, ends, changes=changes)
            rate = (_asked(plane) - before) / _AGENTS / seconds
            method = f"audit log of kube-apiserver: {_AGENTS} agents, {seconds} s; a watch counts when it ends"
            report.add(at_most(f"requests of an agent, {where}", "/s", rate, 0.02, method))
        watches = max(_connections(pid, plane.port) for pid in agents)
        method = "connections to it, one each: urllib3 has no watches over HTTP/2; with NodeResourceTopologies one more"
        report.add(at_most("watches of an agent", "", watches, 5, method))


@contextmanager
def _agent(plane: ControlPlane, name: str) -> Iterator[int]:
    plane.api.create(
        node(name), nodeslo(name, memoryEvictThresholdPercent=70), *(pod(f"{name}-{n}", name) for n in "ab")
    )
    hierarchy = find_memory_hierarchy()
    with (
        NodeCgroup(hierarchy.mount_point, hierarchy.version, GIB) as cgroup,
        tempfile.TemporaryDirectory() as folder,
    ):
        command = [sys.executable, "-m", "koordebpf", "run", "--source", "api", "--node-name", name]
        command += ["--kubeconfig", str(plane.service_account(NAMESPACE, AGENT)), "--node-cgroup", str(cgroup.path)]
        log = Path(folder) / "log"
        with log.open("w") as stderr:
            agent = subprocess.Popen([*command, "--run-dir", folder, "--listen", ""], stderr=stderr)
        try:
            yield agent.pid
            if agent.poll() is not None:
                raise RuntimeError(f"the agent ended: {log.read_text()[-500:]}")
        finally:
            agent.terminate()
            agent.wait()


def _pass_time(plane: ControlPlane, ends: float, *, changes: bool) -> None:
    made = plane.api.create(pod(f"elsewhere-{os.urandom(3).hex()}", "far")) if changes else None
    number = 0
    while (left_s := ends - time.monotonic()) > 0:
        if made is not None:
            number += 1
            plane.api.patch(made, {"metadata": {"labels": {"number": str(number)}}})
        time.sleep(min(_PAUSE_S, left_s))


def _asked(plane: ControlPlane) -> int:
    return sum(each["user"]["username"] == _USER for each in plane.requests())


def _connections(pid: int, port: int) -> int:
    found = psutil.Process(pid).net_connections("tcp")
    return sum(each.status == psutil.CONN_ESTABLISHED and each.raddr and each.raddr.port == port for each in found)
