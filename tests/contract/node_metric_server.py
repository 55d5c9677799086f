"""The NodeMetric of node n1 on the HTTP fake: list, watch and PATCH of its status, as slow or unwilling as wanted."""

from __future__ import annotations

import json
import threading
from collections import deque
from datetime import UTC, datetime
from typing import Any

from koordebpf.kube.cache.node_metric import NODE_METRICS_PATH
from tests.contract.apiserver import Collection, Exchange, Reply, Request, Server, listing, status
from tests.support.json_patch import applied

STATUS_PATH = f"{NODE_METRICS_PATH}/n1/status"


class NodeMetrics:
    """One object; `answers` are given to the next patches in place of its own, `None`: its own."""

    def __init__(self, server: Server, spec: Any = None) -> None:
        self.object: dict[str, Any] = {
            "apiVersion": "slo.koordinator.sh/v1alpha1",
            "kind": "NodeMetric",
            "metadata": {"name": "n1", "uid": "uid-metric", "resourceVersion": "100", "managedFields": []},
            "spec": spec or {},
            "status": {},
        }
        self.patches: list[Request] = []
        self.applied: list[dict[str, Any]] = []  # statuses
        self.answers: deque[Reply | None] = deque()
        self.delay_s = 0.0  # of each answer to a patch; what it asks for is done by then
        self._lock = threading.Lock()
        self._watches: list[Exchange] = []
        self._server = server
        self.collection = Collection(NODE_METRICS_PATH, [self.object], 100)
        server.on(NODE_METRICS_PATH, self._list_or_watch)
        server.on(STATUS_PATH, self._patch)

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.object["status"])

    def write(self, manager: str, subresource: str, **parts: Any) -> None:
        """Let another program replace `spec` or `status`."""
        with self._lock:
            self.object |= parts
            self._written(manager, subresource)

    def delete(self) -> None:
        with self._lock:
            self.collection.items.clear()
            self._event("DELETED")

    def make_again(self) -> None:
        with self._lock:
            self.object |= {"status": {}}
            self.object["metadata"] |= {"uid": f"{self.object['metadata']['uid']}+", "managedFields": []}
            self.collection.items.append(self.object)
            self._written("koord-manager", "")

    def _list_or_watch(self, exchange: Exchange) -> None:
        if not exchange.request.is_watch:
            with self._lock:
                self.collection.version = int(self.object["metadata"]["resourceVersion"])
                self.collection.seen_lists.append(exchange.request)
                exchange.answer(200, listing(self.collection.items, self.collection.version))
            return
        exchange.stream()
        with self._lock:
            # What was written between the list and its watch.
            if self.collection.items and exchange.request.query["resourceVersion"] != self._version():
                exchange.event("MODIFIED", self.object)
            self._watches.append(exchange)
        exchange.hold()

    def _patch(self, exchange: Exchange) -> None:
        with self._lock:
            self.patches.append(exchange.request)
            own = self.answers.popleft() if self.answers else None
        if own is not None:
            own(exchange)
            return
        if self.delay_s and self._server.stopping.wait(self.delay_s):
            return
        with self._lock:
            code, body = self._changed(exchange.request)
        exchange.answer(code, body)

    def _changed(self, request: Request) -> tuple[int, Any]:
        if not self.collection.items:
            return 404, status(404, "NotFound", 'nodemetrics.slo.koordinator.sh "n1" not found')
        after = applied(self.object, request.body)
        if after["metadata"]["resourceVersion"] != self._version():
            return 409, status(409, "Conflict", "the object has been modified; please apply your changes")
        self.object |= {"status": after["status"]}
        self.applied.append(after["status"])
        self._written(request.query["fieldManager"], "status")
        return 200, self.object

    def _version(self) -> str:
        return str(self.object["metadata"]["resourceVersion"])

    def _written(self, manager: str, subresource: str) -> None:
        meta = self.object["metadata"]
        meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)
        now = datetime.now(UTC).isoformat()
        entries = [each for each in meta["managedFields"] if each["manager"] != manager]
        entry = {"manager": manager, "operation": "Update", "subresource": subresource, "time": now}
        meta["managedFields"] = [*entries, entry]
        self._event("MODIFIED")

    def _event(self, kind: str) -> None:
        said = json.loads(json.dumps(self.object))
        for exchange in list(self._watches):
            try:
                exchange.event(kind, said)
            except OSError:
                self._watches.remove(exchange)
