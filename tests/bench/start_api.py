"""From the start of the process to ready, with the API server of a cluster of 5,000 pods."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.bench.api_server import NODE, ApiServer, api_pod, certificate
from tests.bench.figure import at_most, figure
from tests.bench.nodes import FullNode, full_node
from tests.bench.report import Report
from tests.bench.steady import cpu_s
from tests.support.ports import free_port

PODS, CONTAINERS, CLUSTER_PODS = 500, 1_000, 5_000
# The ServiceAccount where every pod has it, in a mount namespace of the agent's own. $0 has the token and the CA.
AS_A_POD = """
mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io/serviceaccount &&
cp "$0/token" "$0/ca.crt" /run/secrets/kubernetes.io/serviceaccount && exec "$@"
"""


def start_api(report: Report) -> None:
    """Start `koordebpf run --source api` on a node of 500 pods until /readyz says so."""
    n = 3 if report.quick else 20
    with full_node(PODS, CONTAINERS) as full, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tls = certificate(folder)
        (folder / "token").write_text("sesame")
        (folder / "ca.crt").write_bytes(tls[0].read_bytes())
        with ApiServer(folder, pods_of(full), others=CLUSTER_PODS - PODS, tls=tls) as server:
            samples = [_start_s(server, folder, full) for _ in range(n)]
            listed = server.ask(do="listed")["listed"]
    method = (
        f"koordebpf run in-cluster, imports and all; {PODS} pods of 3 kB on the node, {CLUSTER_PODS} in the cluster"
    )
    report.add(figure("start: process → ready, source api", "s", [wall for wall, _ in samples], method, reach_p99=2))
    report.add(figure("  CPU time by then", "s", [cpu for _, cpu in samples], "utime + stime of all threads"))
    if any(selector != f"spec.nodeName={NODE}" for selector, _ in listed) or len(listed) != n:
        raise RuntimeError(f"pods of other nodes were asked for: {listed[:3]}")
    most = max(count for _, count in listed)
    report.add(at_most("  pods in the answer to its list", "pods", most, PODS, "counted by the server"))


def pods_of(full: FullNode) -> list[dict[str, Any]]:
    """Return the node's own pods, as large as an API server's."""
    pods = []
    for number, mine in enumerate(full.cgroup.pods):
        pod = api_pod(number, uid=mine["metadata"]["uid"])
        pod["status"]["containerStatuses"] = mine["status"]["containerStatuses"]
        pods.append(pod)
    return pods


def _start_s(server: ApiServer, account: Path, full: FullNode) -> tuple[float, float]:
    port, address = free_port(), urlsplit(server.url)
    command = ["unshare", "--mount", "sh", "-c", AS_A_POD, str(account), sys.executable, "-m", "koordebpf", "run"]
    command += ["--source", "api", "--node-name", NODE, "--node-cgroup", str(full.cgroup.path)]
    cluster = {"KUBERNETES_SERVICE_HOST": str(address.hostname), "KUBERNETES_SERVICE_PORT": str(address.port)}
    started_s = time.monotonic()
    agent = subprocess.Popen(
        [*command, "--listen", f"127.0.0.1:{port}"], stderr=subprocess.DEVNULL, env={**os.environ, **cluster}
    )
    try:
        while time.monotonic() - started_s < 60:
            if is_ready(port):
                return time.monotonic() - started_s, cpu_s(agent.pid)
            if agent.poll() is not None:
                raise RuntimeError("the agent ended")
            time.sleep(0.005)
        raise RuntimeError("the agent did not become ready")
    finally:
        agent.terminate()
        agent.wait()


def is_ready(port: int) -> bool:
    """Tell whether the agent says that it is ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(json.loads(answer.read())["ready"])
    except (urllib.error.URLError, OSError):
        return False
