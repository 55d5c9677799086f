"""What the agent costs as it is deployed, while nothing happens: each source and executor, suppression on."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from koordebpf.errors import SupportError
from tests.bench.api_server import NODE, ApiServer, certificate
from tests.bench.nodes import FullNode, full_node
from tests.bench.report import CannotMeasure, Report
from tests.bench.start_api import AS_A_POD, is_ready, pods_of
from tests.bench.steady import watch_cost
from tests.contract.cri_runtime import Runtime
from tests.host.rigs.live_node import LiveNode
from tests.support.ports import free_port

_PODS, _CONTAINERS = 110, 330
_WARM_S = 15  # the writer has looked at every file
_START_S = 60
_CPU_PERCENT, _RSS_MIB, _CALLS = 0.4, 45, 150


def steady_deployed(report: Report) -> None:
    """Run the agent in-cluster, acting, with the shipped configuration, and watch its cost for two minutes each."""
    seconds = 15 if report.quick else 120
    for source in ("api", "kubelet"):
        for executor in ("api", "cri"):
            size = f"{_PODS} pods / {_CONTAINERS} containers, source {source}, executor {executor}"
            report.say(f"{size} for {seconds} s")
            with _agent(source, executor) as pid:
                time.sleep(_WARM_S)
                watch_cost(report, pid, size, seconds, _CPU_PERCENT, _RSS_MIB, _CALLS)


@contextmanager
def _agent(source: str, executor: str) -> Iterator[int]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        full = stack.enter_context(full_node(_PODS, _CONTAINERS))
        try:
            stack.enter_context(LiveNode(full.cgroup))
        except (KeyError, SupportError, OSError) as error:
            raise CannotMeasure(f"needs cpu and cpuset hierarchies that can be written: {error}") from None
        tls = certificate(folder)
        (folder / "token").write_text("sesame")
        (folder / "ca.crt").write_bytes(tls[0].read_bytes())
        server = stack.enter_context(ApiServer(folder, pods_of(full), tls=tls))
        port = free_port()
        arguments = [*_arguments(folder, full, server.url, source), "--listen", f"127.0.0.1:{port}"]
        if executor == "cri":
            stack.callback(Runtime(folder / "cri.sock").close)
            arguments += ["--executor", "cri", "--cri-socket", str(folder / "cri.sock")]
        address = urlsplit(server.url)
        cluster = {"KUBERNETES_SERVICE_HOST": str(address.hostname), "KUBERNETES_SERVICE_PORT": str(address.port)}
        command = ["unshare", "--mount", "sh", "-c", AS_A_POD, str(folder), sys.executable, "-m", "koordebpf", "run"]
        agent = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=(folder / "log").open("wb"),
            env={**os.environ, **cluster},
        )
        stack.callback(agent.wait)
        stack.callback(agent.terminate)
        _await_ready(agent, port, folder / "log")
        yield agent.pid


def _arguments(folder: Path, full: FullNode, url: str, source: str) -> list[str]:
    given = ["--enforce", "--audit", "-", "--log-format", "json", "--source", source, "--node-name", NODE]
    given += ["--node-cgroup", str(full.cgroup.path), "--run-dir", "/run/koordebpf"]
    if source == "kubelet":
        (folder / "nodeslo.yaml").write_text(
            "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\nmetadata: {name: n1}\n"
            "spec: {resourceUsedThresholdWithBE: {enable: true, memoryEvictThresholdPercent: 90}}\n"
        )
        given += ["--kubelet-url", url, "--kubelet-ca-file", str(folder / "ca.crt")]
        given += ["--pods", str(folder / "nodeslo.yaml")]
    return given


def _await_ready(agent: subprocess.Popen[bytes], port: int, log: Path) -> None:
    ends = time.monotonic() + _START_S
    while not is_ready(port):
        if agent.poll() is not None or time.monotonic() > ends:
            raise RuntimeError(f"the agent did not become ready:\n{log.read_text()}")
        time.sleep(0.05)
