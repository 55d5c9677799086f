"""Writes the status of this node's NodeMetric, through its status subresource. It sends once and never retries."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from koordebpf.kube.cache.node_metric import NODE_METRICS_PATH
from koordebpf.kube.cache.own_node_metric import OwnNodeMetric, decode_own_node_metric
from koordebpf.kube.http.transport import Transport
from koordebpf.kube.malformed import MALFORMED, malformed

MANAGER: Final = "koordebpf"


class NodeMetricStatus:
    """The status of one NodeMetric. Owns `transport` and closes it.

    Needs:   RBAC patch on nodemetrics/status.slo.koordinator.sh.
    """

    def __init__(self, transport: Transport, node_name: str) -> None:
        self._transport = transport
        self._path = f"{NODE_METRICS_PATH}/{quote(node_name, safe='')}/status"

    def patch(self, body: bytes, *, timeout_s: float) -> OwnNodeMetric:
        """Return the object as the server has it after a JSON Patch.

        Raises:  KubeError and its kin. KubeConflict: another wrote meanwhile. KubeGone: there is no NodeMetric of this
                 node. After a time-out or a broken connection the outcome is unknown.
        """
        answer = self._transport.json_patch(
            self._path, body, manager=MANAGER, resource="nodemetrics/status", timeout_s=timeout_s
        )
        try:
            return decode_own_node_metric(answer)
        except MALFORMED as e:
            raise malformed("patch nodemetrics/status", "the answer is not a NodeMetric", e) from e

    def forget_connections(self) -> None:
        """Let the next request make a connection of its own."""
        self._transport.forget_connections()

    def close(self) -> None:
        """Cut the connection; a request that waits fails at once."""
        self._transport.close()
