"""An API server and a kubelet in one, for pods that are real cgroups: what it evicts, it kills, and then it says so."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from bisect import bisect_right
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

from koordebpf.report.foresight import REASON as EVICTION_SOON
from tests.contract.apiserver import Exchange, Reply, Server, gives, listing, node, nodeslo, status, until
from tests.support.nodes import NodeCgroup

_BOOKMARK_S = 0.2
EVICTED = {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}


class _Watched:
    # One resource whose watches live: they give every change since the version asked for, and bookmarks meanwhile.
    def __init__(self, cluster: LiveCluster, kind: str) -> None:
        self.kind = kind
        self.items: dict[str, dict[str, Any]] = {}
        self._cluster = cluster
        self._history: list[tuple[int, bytes]] = []

    def put(self, kind: str, item: dict[str, Any]) -> None:
        with self._cluster.changed:
            item["metadata"]["resourceVersion"] = self._cluster.next_version()
            if kind == "DELETED":
                self.items.pop(item["metadata"]["uid"], None)
            else:
                self.items[item["metadata"]["uid"]] = item
            self._history.append((self._cluster.version, json.dumps({"type": kind, "object": item}).encode()))
            self._cluster.changed.notify_all()

    def reply(self, exchange: Exchange) -> None:
        if self._cluster.is_cut:
            return exchange.cut()
        if not exchange.request.is_watch:
            with self._cluster.changed:
                body = listing(list(self.items.values()), self._cluster.version)
            return exchange.answer(200, body)
        exchange.stream()
        self._tell(exchange, int(exchange.request.query["resourceVersion"]))
        return exchange.cut()

    def _tell(self, exchange: Exchange, since: int) -> None:
        cluster = self._cluster
        ends = time.monotonic() + (cluster.watch_s or float("inf"))
        late = b""
        sent = bisect_right(self._history, since, key=lambda change: change[0])
        while not (cluster.server.stopping.is_set() or cluster.is_cut):
            with cluster.changed:
                if sent == len(self._history):
                    cluster.changed.wait(_BOOKMARK_S)
                news, version = self._history[sent:], cluster.version
            if time.monotonic() >= ends:
                cluster.watches_cut += 1
                exchange.raw(b'40\r\n{"type":"MODIF')  # in the middle of a line
                return
            for _, line in news:
                # What is sent again: the same event at once, and the one before it.
                for each in [line] * cluster.repeats + [late] * (cluster.repeats > 1 and late != b""):
                    exchange.chunk(each + b"\n")
                late = line
            sent += len(news)
            if not news:
                exchange.event("BOOKMARK", {"kind": self.kind, "metadata": {"resourceVersion": str(version)}})


class LiveCluster:
    """Serves the pods of `node_cgroup`, a Node `n1` and its NodeSLO; takes evictions and Events.

    An eviction answers with the next of `answers[pod]`, and without one it succeeds: the pod's processes die and its
    DELETED follows. `is_cut` breaks every list and watch until it is taken back. `watch_s` cuts each watch after so
    long, in the middle of a line; with `repeats` each event comes so often, and the one before it late once more.
    """

    def __init__(self, node_cgroup: NodeCgroup, threshold_percent: int = 70, port: int = 0) -> None:
        self.changed = threading.Condition()
        self.version = 100
        self.is_cut = False
        self.watch_s: float | None = None
        self.repeats = 1
        self.watches_cut = 0
        self.server = Server(port=port)
        self.answers: defaultdict[str, deque[Reply]] = defaultdict(deque)
        self.evictions: list[tuple[str, dict[str, Any], float]] = []  # pod, body, time.monotonic()
        self.events: list[dict[str, Any]] = []
        self.node_cgroup = node_cgroup
        self.pods, self.nodes, self.nodeslos = _Watched(self, "Pod"), _Watched(self, "Node"), _Watched(self, "NodeSLO")
        self.pdbs = _Watched(self, "PodDisruptionBudget")
        self.namespaces = _Watched(self, "Namespace")
        self.server.on("/apis/policy/v1/namespaces/default/poddisruptionbudgets", self.pdbs.reply)
        self.server.on("/api/v1/pods", self.pods.reply)
        self.server.on("/api/v1/nodes", self.nodes.reply)
        self.server.on("/api/v1/namespaces", self.namespaces.reply)
        self.server.on("/apis/slo.koordinator.sh/v1alpha1/nodeslos", self.nodeslos.reply)
        self.server.on("/api/v1/namespaces/default/events", self._take_event)
        self.nodes.put("ADDED", node(1))
        self.set_threshold(threshold_percent)
        for pod in node_cgroup.pods:
            self.add(pod)

    def next_version(self) -> str:
        self.version += 1
        return str(self.version)

    def add(self, pod: dict[str, Any]) -> None:
        self.server.on(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/eviction", self._evict)
        self.pods.put("ADDED", pod)

    def set_threshold(self, percent: object) -> None:
        slo = nodeslo(1)
        slo["spec"]["resourceUsedThresholdWithBE"] |= {"memoryEvictThresholdPercent": percent}
        self.nodeslos.put("MODIFIED", slo)

    def asked(self) -> list[str]:
        """Return the pods whose eviction was asked for, in order."""
        return [name for name, _, _ in self.evictions]

    @property
    def eviction_events(self) -> list[dict[str, Any]]:
        """Return the Events of evictions; whether one was forecast before depends on how fast this machine is."""
        return [event for event in self.events if event["reason"] != EVICTION_SOON]

    def pod(self, name: str) -> dict[str, Any]:
        return next(pod for pod in self.node_cgroup.pods if pod["metadata"]["name"] == name)

    def kill(self, name: str) -> None:
        """End the pod's processes as a kubelet does, then say that the pod is gone."""
        directory = self.node_cgroup.pod_paths[name]
        until(lambda: not _kill_all(directory), f"{name} does not end")
        self.pods.put("DELETED", self.pod(name))

    def close(self) -> None:
        self.server.close()

    def _evict(self, exchange: Exchange) -> None:
        name = exchange.request.path.split("/")[-2]
        body = json.loads(exchange.request.body)
        self.evictions.append((name, body, time.monotonic()))
        try:
            reply = self.answers[name].popleft()
        except IndexError:
            exchange.answer(201, EVICTED)
            return self.kill(name)
        return reply(exchange)

    def _take_event(self, exchange: Exchange) -> None:
        self.events.append(json.loads(exchange.request.body))
        exchange.answer(201, {})


def kubeconfig(path: Path, url: str) -> Path:
    path.write_text(
        f"""
apiVersion: v1
kind: Config
current-context: here
contexts: [{{name: here, context: {{cluster: here, user: agent}}}}]
clusters: [{{name: here, cluster: {{server: "{url}"}}}}]
users: [{{name: agent, user: {{token: sesame}}}}]
"""
    )
    return path


def busy(retry_after_s: int | None = None) -> Reply:
    """Answer as a PodDisruptionBudget does."""
    body = status(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")
    return gives(429, body, **({"Retry_After": str(retry_after_s)} if retry_after_s is not None else {}))


def denied() -> Reply:
    return gives(403, status(403, "Forbidden", 'pods "a" is forbidden: cannot create resource "pods/eviction"'))


def is_another() -> Reply:
    message = "Precondition failed: UID in precondition: 1, UID in object meta: 2"
    return gives(409, status(409, "Conflict", f"Operation cannot be fulfilled on pods: {message}"))


def _kill_all(directory: Path) -> list[int]:
    pids = [int(pid) for procs in directory.glob("**/cgroup.procs") for pid in procs.read_text().split()]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if pids:
        time.sleep(0.01)
    return pids
