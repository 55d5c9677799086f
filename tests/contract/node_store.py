"""A Node that others write too, behind a server that merges patches as the API server does."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from koordebpf.kube.clients.taints import TAINT_KEY
from tests.contract.apiserver import Exchange, Server, node, status

PATH = "/api/v1/nodes/n1"
OURS = {"key": TAINT_KEY, "effect": "NoSchedule"}
OTHERS = [
    {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
    {"key": "team", "value": "a", "effect": "NoSchedule"},
    {"key": TAINT_KEY, "value": "an administrator's", "effect": "PreferNoSchedule"},
]
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}


class NodeStore:
    """One Node that takes strategic merge patches: taints as a whole, conditions by type."""

    def __init__(self, server: Server) -> None:
        self.node = node(7)
        self.node["spec"] = {"taints": [dict(taint) for taint in OTHERS], "podCIDR": "10.0.0.0/24"}
        self.node["status"]["conditions"] = [dict(READY)]
        self.after_a_read: Callable[[], None] = lambda: None
        self.patches: list[dict[str, Any]] = []
        server.on(PATH, self.answer)
        server.on(f"{PATH}/status", self.answer)

    @property
    def taints(self) -> list[dict[str, Any]]:
        return self.node["spec"].get("taints", [])

    @property
    def conditions(self) -> list[dict[str, Any]]:
        return self.node["status"]["conditions"]

    def touch(self) -> None:
        self.node["metadata"]["resourceVersion"] = str(int(self.node["metadata"]["resourceVersion"]) + 1)

    def answer(self, exchange: Exchange) -> None:
        if exchange.request.method == "GET":
            exchange.answer(200, self.node)
            return self.after_a_read()
        assert exchange.request.method == "PATCH"
        assert exchange.request.headers["content-type"] == "application/strategic-merge-patch+json"
        change = json.loads(exchange.request.body)
        version = change.get("metadata", {}).get("resourceVersion")
        if version not in (None, self.node["metadata"]["resourceVersion"]):
            return exchange.answer(409, status(409, "Conflict", "the object has been modified"))
        self.patches.append(change)
        for name, value in change.get("metadata", {}).get("annotations", {}).items():
            annotations = self.node["metadata"].setdefault("annotations", {})
            annotations.pop(name, None) if value is None else annotations.update({name: value})
        if exchange.request.path.endswith("/status"):
            for condition in change["status"]["conditions"]:
                self.conditions[:] = [each for each in self.conditions if each["type"] != condition["type"]]
                if condition.get("$patch") != "delete":
                    self.conditions.append(condition)
        elif change["spec"]["taints"] is None:
            self.node["spec"].pop("taints", None)
        else:
            self.node["spec"]["taints"] = change["spec"]["taints"]
        self.touch()
        return exchange.answer(200, self.node)
