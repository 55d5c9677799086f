"""What batch and mid resources of 5,000 Nodes with 30 pods each cost: one pass, memory, all written."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from koordebpf.controller.batch.calculations import Calculations
from koordebpf.controller.batch.facts import MetricRecord, PodRecord, read_node_metric, read_pod
from koordebpf.kube.colocation.nodes import decode_colocation_node
from koordebpf.slo.manager.node_colocation import effective_colocation
from tests.bench.controller import running
from tests.bench.figure import at_most, figure
from tests.bench.report import Report
from tests.bench.steady import cpu_s, rollup_mib
from tests.contract.apiserver import Exchange, Server, listing, status, until
from tests.contract.objectstore import CONFIGMAPS, NODEMETRICS, NODES, NODESLOS, PODS, config_map
from tests.host.live_cluster import kubeconfig

_PODS_EACH = 30
_CONFIG = '{"enable": true}'
_OPTIONS = ("--batch-resources", "--adopt")


def batch(report: Report) -> None:
    """Compute all and a hundredth in this process; then start a controller beside a server with as many objects."""
    nodes = 500 if report.quick else 5000
    _compute(report, nodes)
    server = Server()
    cluster = _Cluster(server, nodes)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            running(kubeconfig(Path(folder) / "kubeconfig", server.url), "", *_OPTIONS) as (process, began_s),
        ):
            until(lambda: len(cluster.patched) == nodes, "Nodes written", timeout_s=600)
            took_s = time.monotonic() - began_s
            name = f"batch: process → batch resources of {nodes} Nodes written"
            report.add(at_most(name, "s", took_s, None, "50 a second at most, against a loopback server in Python"))
            memory = rollup_mib(process.pid)
            name = f"batch: RSS, {nodes} Nodes and {nodes * _PODS_EACH} pods"
            report.add(at_most(name, "MiB", memory["Rss"], 300, "smaps_rollup once all were written, NodeSLOs too"))
            began, cpu = time.monotonic(), cpu_s(process.pid)
            time.sleep(10 if report.quick else 30)
            percent = (cpu_s(process.pid) - cpu) / (time.monotonic() - began) * 100
            report.add(at_most(f"batch: CPU, {nodes} Nodes, nothing changes", "%core", percent, None, "utime + stime"))
    finally:
        server.close()


def _compute(report: Report, nodes: int) -> None:
    known = [decode_colocation_node(msgspec.json.encode(_node(number))) for number in range(nodes)]
    tables = _Tables(nodes)
    config = effective_colocation(_CONFIG)
    calculations = Calculations()
    whole, few = [], []
    for _ in range(5):
        for samples, count in ((whole, nodes), (few, nodes // 100)):
            tables.dirty = {f"node-{number}" for number in range(count)}
            began = time.process_time()
            calculations.update(known, tables, config, time.time_ns())
            samples.append(time.process_time() - began)
    method = f"{_PODS_EACH} pods each; CPU time, for nothing waits"
    report.add(figure(f"batch: a pass over {nodes} Nodes", "s", whole, method, reach_p99=2.0))
    report.add(figure(f"batch: a look where {nodes // 100} of them changed", "s", few, "the same"))


class _Tables:
    def __init__(self, nodes: int) -> None:
        self.dirty: set[str] = set()
        self._of = {
            f"node-{number}": (
                tuple(read_pod(msgspec.Raw(msgspec.json.encode(_pod(number, each)))) for each in range(_PODS_EACH)),
                read_node_metric(msgspec.Raw(msgspec.json.encode(_report(number)))),
                None,
            )
            for number in range(nodes)
        }

    def changed(self) -> set[str]:
        return self.dirty

    def of(self, node: str) -> tuple[tuple[PodRecord, ...], MetricRecord, None]:
        return self._of[node]


class _Cluster:
    """Lists are made as they are asked for, a page at a time; watches say what was written."""

    def __init__(self, server: Server, nodes: int) -> None:
        self.patched: set[str] = set()
        self._nodes = nodes
        self._version = 1000
        self._lock = threading.Lock()
        self._watches: list[tuple[str, Exchange]] = []
        server.otherwise = self._reply

    def _reply(self, exchange: Exchange) -> None:
        request = exchange.request
        del exchange._server.requests[:]  # with half a million of them the server would be what is measured
        if request.is_watch:
            with self._lock:
                exchange.stream()
                self._watches.append((request.path, exchange))
            exchange.hold()
        elif request.method == "GET":
            self._list(exchange)
        elif request.method == "PATCH":
            name = request.path.split("/")[-2]
            node = _node(int(name.removeprefix("node-")))
            change = json.loads(request.body)
            node["metadata"]["annotations"] |= change["metadata"]["annotations"]
            for field, values in change["status"].items():
                node["status"][field] |= values
            self._say(NODES, "MODIFIED", node)
            self.patched.add(name)
            exchange.answer(200, b"{}")
        else:
            obj = json.loads(request.body)
            path = request.path if request.method == "POST" else request.path.rpartition("/")[0]
            obj["metadata"].setdefault("uid", f"u-{path}-{obj['metadata']['name']}")
            self._say(path, "ADDED" if request.method == "POST" else "MODIFIED", obj)
            exchange.answer(201 if request.method == "POST" else 200, obj)

    def _say(self, path: str, kind: str, obj: dict[str, Any]) -> None:
        with self._lock:
            self._version += 1
            obj["metadata"]["resourceVersion"] = str(self._version)
            if path == NODEMETRICS:
                obj["status"] = _report(int(obj["metadata"]["name"].removeprefix("node-")))["status"]
            for watched, exchange in self._watches:
                if watched == path:
                    exchange.event(kind, obj)

    def _list(self, exchange: Exchange) -> None:
        request = exchange.request
        first, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", 500))
        made: Any
        match request.path:
            case path if path == NODES:
                total, made = self._nodes, _node
            case path if path == PODS:
                total = self._nodes * _PODS_EACH
                made = lambda number: _pod(*divmod(number, _PODS_EACH))  # noqa: E731
            case path if path == NODEMETRICS:
                total, made = self._nodes, _report
            case path if path == NODESLOS:
                total, made = 0, None
            case path if path == CONFIGMAPS:
                total, made = 1, lambda _: _with_identity(config_map(colocation_config=_CONFIG), "c")
            case _:
                exchange.answer(404, status(404, "NotFound", "not here"))
                return
        last = min(total, first + limit)
        more = str(last) if last < total else ""
        exchange.answer(200, listing((made(number) for number in range(first, last)), 1000, more))


def _with_identity(obj: dict[str, Any], uid: str) -> dict[str, Any]:
    obj["metadata"] |= {"uid": uid, "resourceVersion": "1000"}
    return obj


def _node(number: int) -> dict[str, Any]:
    amounts = {"cpu": "64", "memory": "263Gi", "pods": "110"}
    status = {"capacity": amounts, "allocatable": dict(amounts)}
    meta = {
        "name": f"node-{number}",
        "labels": {f"example.com/label-{n}": f"value-{n}" for n in range(15)},
        "annotations": {f"example.com/note-{n}": "x" * 60 for n in range(8)},
    }
    return _with_identity({"metadata": meta, "status": status}, f"n{number}")


def _pod(node: int, number: int) -> dict[str, Any]:
    resources = {"requests": {"cpu": f"{100 + number}m", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
    labels = {"app": "web", "pod-template-hash": f"{node:08x}"}
    obj = {
        "metadata": {"name": f"web-{node:08x}-{number:05x}", "namespace": "team-a", "labels": labels},
        "spec": {"nodeName": f"node-{node}", "priority": 9000, "containers": [{"name": "c", "resources": resources}]},
        "status": {"phase": "Running", "qosClass": "Burstable", "startTime": "2026-01-01T00:00:00Z"},
    }
    return _with_identity(obj, f"00000000-0000-4000-{number:04x}-{node:012x}")


def _report(node: int) -> dict[str, Any]:
    def resources(cpu: str, memory: str) -> dict[str, Any]:
        return {"resources": {"cpu": cpu, "memory": memory}}

    pods = [
        {
            "name": f"web-{node:08x}-{number:05x}",
            "namespace": "team-a",
            "podUsage": resources(f"{50 + number}m", f"{700_000 + number}Ki"),
            "priority": "koord-prod",
            "qos": "LS",
        }
        for number in range(_PODS_EACH)
    ]
    status = {
        "updateTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "nodeMetric": {"nodeUsage": resources("20", "90Gi"), "systemUsage": resources("1500m", "3Gi")},
        "podsMetric": pods,
    }
    return _with_identity({"metadata": {"name": f"node-{node}"}, "status": status}, f"m{node}")
