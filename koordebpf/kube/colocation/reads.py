"""One Node and what its batch resources come from, asked for once, by a person's own rights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import KubeGone
from koordebpf.kube.body import decoded
from koordebpf.kube.cache.list_stream import Listing, objects
from koordebpf.kube.cache.node_metric import NODE_METRICS_PATH
from koordebpf.kube.cache.objects import ConfigMap
from koordebpf.kube.colocation.node_topologies import TOPOLOGIES_PATH
from koordebpf.kube.config_map import ConfigMapName
from koordebpf.kube.http.transport import Transport

_TIMEOUT_S = 15.0
_ASKED = "what was asked for"
T = TypeVar("T")


class NodeReads:
    """Requests of one look.

    Raises:  KubeError and its kin, each of them. Of what need not be there None is returned where it is not.
    """

    def __init__(self, transport: Transport, node: str) -> None:
        self._transport = transport
        self._name = quote(node, safe="")
        self._node = node

    def node(self, decode: Callable[[msgspec.Raw], T]) -> T:
        """Return the Node. KubeGone: there is none of this name."""
        body = self._transport.get(f"/api/v1/nodes/{self._name}", verb="get", resource="nodes", timeout_s=_TIMEOUT_S)
        return decoded(msgspec.Raw(body), decode, "get nodes", _ASKED)

    def pods(self, decode: Callable[[msgspec.Raw], T]) -> tuple[T, ...]:
        """Return the pods of the Node that have not ended."""
        selector = f"spec.nodeName={self._node},status.phase!=Succeeded,status.phase!=Failed"
        listing = Listing("/api/v1/pods", {"fieldSelector": selector}, "pods", _TIMEOUT_S)
        return tuple(objects(self._transport, listing, decode))

    def node_metric(self, decode: Callable[[msgspec.Raw], T]) -> T | None:
        """Return its NodeMetric."""
        return self._optional(f"{NODE_METRICS_PATH}/{self._name}", decode, "nodemetrics")

    def topology(self, decode: Callable[[msgspec.Raw], T]) -> T | None:
        """Return its NodeResourceTopology."""
        return self._optional(f"{TOPOLOGIES_PATH}/{self._name}", decode, "noderesourcetopologies")

    def config(self, named: ConfigMapName) -> dict[str, str]:
        """Return the data of slo-controller-config, by the name that it has; empty where it is not there."""
        found = self._optional(named.path, decoder(ConfigMap).decode, "configmaps")
        return (found.data if found else None) or {}

    def _optional(self, path: str, decode: Callable[[msgspec.Raw], T], resource: str) -> T | None:
        try:
            body = self._transport.get(path, verb="get", resource=resource, timeout_s=_TIMEOUT_S)
        except KubeGone:
            return None
        return decoded(msgspec.Raw(body), decode, f"get {resource}", _ASKED)
