"""Objects behind the API server of the tests: lists, watches, creates and updates, with versions that conflict."""

from __future__ import annotations

import bisect
import copy
import json
import threading
from collections.abc import Callable
from typing import Any

from tests.contract.apiserver import Exchange, Reply, Request, Server, listing, status
from tests.contract.rbac import Rules, asked

NODES = "/api/v1/nodes"
NODESLOS = "/apis/slo.koordinator.sh/v1alpha1/nodeslos"
CONFIGMAPS = "/api/v1/namespaces/koordinator-system/configmaps"
EVENTS = "/api/v1/namespaces/koordinator-system/events"
PODS = "/api/v1/pods"
NODEMETRICS = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
MANAGER_LEASES = "/apis/coordination.k8s.io/v1/namespaces/koordinator-system/leases"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/koordebpf-system/leases"

Fault = Callable[[Request], Reply | None]


def node(name: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": {"memory": "16Gi"}, "conditions": [{"type": "Ready", "lastHeartbeatTime": "0"}]},
    }


def config_map(**data: Any) -> dict[str, Any]:
    """`data` by key with underscores; a value that is no text is written as JSON."""
    texts = {
        key.replace("_", "-"): value if isinstance(value, str) else json.dumps(value) for key, value in data.items()
    }
    meta = {"name": "slo-controller-config", "namespace": "koordinator-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": texts}


class Store:
    """The collections that a controller asks for, each name → object; a change is seen by every watch."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.version = 100
        self.objects: dict[str, dict[str, dict[str, Any]]] = {
            path: {}
            for path in (
                *(NODES, NODESLOS, CONFIGMAPS, EVENTS, LEASES),
                *(PODS, NODEMETRICS, TOPOLOGIES, MANAGER_LEASES),
            )
        }
        self.faults: list[Fault] = []
        self.rules: Rules | None = None
        self.denied: list[tuple[str, str]] = []
        self._changes: list[tuple[int, str, str, dict[str, Any]]] = []
        self._oldest = 0  # versions up to this are forgotten
        self._epoch = 0
        self._change = threading.Condition()
        server.otherwise = self._reply

    # What a test does behind the controller's back.

    def put(self, path: str, obj: dict[str, Any]) -> dict[str, Any]:
        with self._change:
            return self._keep(path, obj)

    def remove(self, path: str, name: str) -> None:
        with self._change:
            gone = self.objects[path].pop(name)
            self.version += 1
            gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
            self._changes.append((self.version, path, "DELETED", gone))
            self._change.notify_all()

    def shorten_lease(self, name: str) -> None:
        """Have a Lease last one second from when a candidate sees it next: no test waits for one of 15 s."""
        with self._change:
            lease = copy.deepcopy(self.objects[LEASES][name])
            lease["spec"]["leaseDurationSeconds"] = 1
            self._keep(LEASES, lease)

    def end_watches(self, *, forget: bool = False) -> None:
        """End every watch; with `forget`, resuming them answers 410."""
        with self._change:
            self._epoch += 1
            if forget:
                self._oldest = self.version = self.version + 1
                self._changes.clear()
            self._change.notify_all()

    def writes(self, path: str = NODESLOS) -> list[Request]:
        return [r for r in list(self.server.requests) if r.method in ("POST", "PUT") and r.path.startswith(path)]

    # What the server answers.

    def _reply(self, exchange: Exchange) -> None:
        request = exchange.request
        for fault in self.faults:
            if reply := fault(request):
                reply(exchange)
                return
        if self.rules and not self.rules.allow(what := asked(request)):
            self.denied.append((what.resource, what.verb))
            exchange.answer(403, status(403, "Forbidden", f"cannot {what.verb} resource {what.resource}"))
            return
        path, _, name = request.path.rpartition("/")
        if request.path in self.objects:
            match request.method:
                case "GET" if request.is_watch:
                    self._watch(exchange)
                case "GET":
                    self._list(exchange)
                case "POST":
                    self._create(exchange, json.loads(request.body))
        elif path in self.objects and request.method in ("GET", "PUT"):
            self._one(exchange, path, name)
        elif path in self.objects and request.method == "DELETE":
            self._delete(exchange, path, name)
        elif request.method == "PATCH" and name == "status" and path.rpartition("/")[0] == NODES:
            self._patch_status(exchange, path.rpartition("/")[2])
        else:
            exchange.answer(404, status(404, "NotFound", "the server could not find the requested resource"))

    def _list(self, exchange: Exchange) -> None:
        wanted = _wanted(exchange.request)
        with self._change:
            kept = [obj for name, obj in self.objects[exchange.request.path].items() if wanted in ("", name)]
            body = json.dumps(listing(kept, self.version)).encode()
        exchange.answer(200, body)

    def _watch(self, exchange: Exchange) -> None:
        request = exchange.request
        seen = int(request.query["resourceVersion"])
        wanted = _wanted(request)
        with self._change:  # at one moment: what is forgotten after it ends this watch
            is_old, epoch = seen < self._oldest, self._epoch
        if is_old:
            exchange.answer(410, status(410, "Expired", "too old resource version"))
            return
        exchange.stream()
        while not self.server.stopping.is_set():
            with self._change:
                if self._epoch != epoch:
                    break
                fresh = self._changes[bisect.bisect_right(self._changes, seen, key=lambda change: change[0]) :]
                if not fresh:
                    self._change.wait(0.1)
            for version, path, kind, obj in fresh:
                seen = version
                if path == request.path and wanted in ("", obj["metadata"]["name"]):
                    exchange.event(kind, obj)
        exchange.end()

    def _create(self, exchange: Exchange, obj: dict[str, Any]) -> None:
        path, name = exchange.request.path, obj["metadata"]["name"]
        with self._change:
            if name in self.objects[path]:
                answer = (409, status(409, "AlreadyExists", f"{name} already exists"))
            else:
                answer = (201, self._keep(path, obj))
        exchange.answer(*answer)

    def _one(self, exchange: Exchange, path: str, name: str) -> None:
        with self._change:
            kept = self.objects[path].get(name)
            if kept is None:
                answer: tuple[int, object] = (404, status(404, "NotFound", f"{name} not found"))
            elif exchange.request.method == "GET":
                answer = (200, kept)
            else:
                sent = json.loads(exchange.request.body)
                if sent["metadata"]["resourceVersion"] != kept["metadata"]["resourceVersion"]:
                    answer = (409, status(409, "Conflict", "the object has been modified"))
                else:
                    answer = (200, self._keep(path, sent))
        exchange.answer(*answer)

    def _delete(self, exchange: Exchange, path: str, name: str) -> None:
        uid = json.loads(exchange.request.body)["preconditions"]["uid"]
        kept = self.objects[path].get(name)
        if kept is None:
            exchange.answer(404, status(404, "NotFound", f"{name} not found"))
        elif kept["metadata"]["uid"] != uid:
            exchange.answer(409, status(409, "Conflict", "the UID in the precondition is another"))
        else:
            self.remove(path, name)
            exchange.answer(200, {"kind": "Status", "status": "Success"})

    # A strategic merge patch, of maps alone: null removes a key.
    def _patch_status(self, exchange: Exchange, name: str) -> None:
        with self._change:
            kept = copy.deepcopy(self.objects[NODES].get(name))
            if kept is not None:
                _merge(kept, json.loads(exchange.request.body))
                self._keep(NODES, kept)
        if kept is None:
            exchange.answer(404, status(404, "NotFound", f"{name} not found"))
        else:
            exchange.answer(200, kept)

    def _keep(self, path: str, obj: dict[str, Any]) -> dict[str, Any]:
        name = obj["metadata"]["name"]
        before = self.objects[path].get(name)
        self.version += 1
        uid = before["metadata"]["uid"] if before else f"uid-{name}-{self.version}"
        kept = copy.deepcopy(obj)
        kept["metadata"].update({"uid": uid, "resourceVersion": str(self.version)})
        self.objects[path][name] = kept
        self._changes.append((self.version, path, "MODIFIED" if before else "ADDED", kept))
        self._change.notify_all()
        return kept


# Of other selectors the server of the tests keeps all: who asks must bear what it did not ask for.
def _wanted(request: Request) -> str:
    selector = request.query.get("fieldSelector", "")
    return selector.removeprefix("metadata.name=") if selector.startswith("metadata.name=") else ""


def _merge(into: dict[str, Any], change: dict[str, Any]) -> None:
    for name, value in change.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(name, {}), value)
        else:
            into[name] = value
