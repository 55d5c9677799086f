"""What `koordebpf controller` costs with 500 nodes: until all have their NodeSLO, and when nothing happens."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.figure import at_most, figure
from tests.bench.report import Report
from tests.bench.steady import cpu_s, rollup_mib
from tests.contract.apiserver import Request, Server, until
from tests.contract.objectstore import CONFIGMAPS, NODES, NODESLOS, Store, config_map, node
from tests.host.live_cluster import kubeconfig

_NODES = 500
_LISTEN = "127.0.0.1:0"
_REPORT_S = 300  # a kubelet writes its Node's status so often where nothing changes
_STRATEGY = {"clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": 80, "memoryEvictLowerPercent": 75}}


def controller(report: Report) -> None:
    """Start it beside 500 Nodes, three times or more; then watch it while they send heartbeats."""
    starts, seconds = (2, 15) if report.quick else (5, 120)
    whole, writing = [], []
    for _ in range(starts):
        with _cluster() as (store, config), running(config, _LISTEN) as (_, started_s):
            until(lambda store=store: len(store.objects[NODESLOS]) == _NODES, "NodeSLOs", timeout_s=60)
            ended = time.monotonic()
            whole.append(ended - started_s)
            writing.append(ended - store.first_write)
            requests = len(store.writes())
    report.add(figure(f"controller: process → {_NODES} NodeSLOs written", "s", whole, "imports, election and all"))
    method = "one after another, against a loopback server in Python"
    report.add(figure(f"controller: first to last of {_NODES} writes", "s", writing, method))
    report.add(at_most("controller: writes for them", "", requests, _NODES, "counted by the server"))
    with _cluster() as (store, config), running(config, _LISTEN) as (process, _):
        until(lambda: len(store.objects[NODESLOS]) == _NODES, "NodeSLOs", timeout_s=60)
        report.say(f"steady for {seconds} s")
        _watch(report, store, process.pid, seconds)


def _watch(report: Report, store: Store, pid: int, seconds: int) -> None:
    time.sleep(3)
    writes, cpu, started_s = len(store.writes()), cpu_s(pid), time.monotonic()
    beats = 0
    while (elapsed := time.monotonic() - started_s) < seconds:
        if beats < elapsed * _NODES / _REPORT_S:
            name = f"n{beats % _NODES}"
            store.put(NODES, _node(name) | {"status": {"conditions": [{"lastHeartbeatTime": str(beats)}]}})
            beats += 1
        time.sleep(0.05)
    percent = (cpu_s(pid) - cpu) / elapsed * 100
    method = f"utime + stime over {seconds} s, {beats} heartbeats of Nodes, lease renewed every 2 s"
    report.add(at_most(f"controller: steady CPU, {_NODES} nodes", "%core", percent, None, method))
    memory = rollup_mib(pid)
    report.add(
        at_most(f"controller: steady RSS, {_NODES} nodes", "MiB", memory["Rss"], None, "smaps_rollup at the end")
    )
    more = len(store.writes()) - writes
    report.add(at_most("controller: writes meanwhile", "", more, 0, "counted by the server"))


class _Timed(Store):
    """Knows when the first NodeSLO was written."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.first_write = 0.0
        self.faults.append(self._note)

    def _note(self, request: Request) -> None:
        if request.method == "POST" and request.path == NODESLOS and not self.first_write:
            self.first_write = time.monotonic()


def _node(name: str) -> dict[str, object]:
    """A Node with as many labels as a cloud provider's."""
    labels = {f"example.com/label-{n}": f"value-{n}" for n in range(15)}
    made = node(name, **labels)
    made["metadata"]["annotations"] = {f"example.com/note-{n}": "x" * 60 for n in range(8)}
    return made


@contextmanager
def _cluster() -> Iterator[tuple[_Timed, Path]]:
    server = Server()
    store = _Timed(server)
    for number in range(_NODES):
        store.put(NODES, _node(f"n{number}"))
    store.put(CONFIGMAPS, config_map(resource_threshold_config=_STRATEGY))
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield store, kubeconfig(Path(folder) / "kubeconfig", server.url)
        finally:
            server.close()


@contextmanager
def running(config: Path, listen: str, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """Have a controller with this kubeconfig; give its process and when it was started."""
    given = ["--kubeconfig", str(config), "--listen", listen, *options]
    command = [sys.executable, "-m", "koordebpf", "controller", *given]
    started_s = time.monotonic()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield process, started_s
    finally:
        process.terminate()
        process.wait(30)
