"""What the controller writes for colocation: batch and mid resources of Nodes, and the spec of NodeMetrics.

It sends once and never retries. Of a Node only the keys that are named change, what others wrote stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from koordebpf.decoding import decoder
from koordebpf.kube.body import decoded, encoded
from koordebpf.kube.cache.node_metric import NODE_METRIC_VERSION, NODE_METRICS_PATH, NodeMetricSpec
from koordebpf.kube.clients.nodeslos import NodeSLOMeta
from koordebpf.kube.colocation.node_topologies import TOPOLOGIES_PATH
from koordebpf.kube.http.transport import Transport

_ANSWER_S: Final = 5.0  # of one write, as of a NodeSLO


class WrittenMetric(msgspec.Struct, frozen=True, omit_defaults=True):
    """A NodeMetric as the controller writes it: without a status, which is the agent's."""

    metadata: NodeSLOMeta
    spec: NodeMetricSpec | None = None


_METRIC = decoder(WrittenMetric)
_TOPOLOGY = decoder(dict[str, Any])


class ColocationWriter:
    """The requests.

    Needs:   RBAC patch on nodes/status; create, update and delete on nodemetrics.slo.koordinator.sh; get and update on
             noderesourcetopologies.topology.node.k8s.io.
    Raises:  KubeError and its kin, each of them. After a time-out or a broken connection the outcome is unknown.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def patch_node(self, name: str, amounts: Mapping[str, int | None], annotations: Mapping[str, str | None]) -> None:
        """Set capacity and allocatable of these resources; None removes one. Annotations likewise.

        One request for both: the status of a Node may be patched together with its metadata, as kubelet does.
        KubeGone: there is no such Node any more.
        """
        values = {resource: None if amount is None else str(amount) for resource, amount in amounts.items()}
        change: dict[str, Any] = {"status": {"capacity": values, "allocatable": values}}
        if annotations:
            change["metadata"] = {"annotations": dict(annotations)}
        path = f"/api/v1/nodes/{quote(name, safe='')}/status"
        self._transport.patch(path, msgspec.json.encode(change), resource="nodes/status", timeout_s=_ANSWER_S)

    def create_metric(self, metric: WrittenMetric) -> WrittenMetric:
        """Return the object as the server has it. KubeConflict: there is one already."""
        body = self._transport.post(NODE_METRICS_PATH, _body(metric), resource="nodemetrics", timeout_s=_ANSWER_S)
        return decoded(body, _METRIC.decode, "create nodemetrics", "a NodeMetric")

    def update_metric(self, metric: WrittenMetric) -> WrittenMetric:
        """Put it in place of the version it was made from. KubeConflict: that is not the newest any more."""
        path = f"{NODE_METRICS_PATH}/{quote(metric.metadata.name, safe='')}"
        body = self._transport.put(path, _body(metric), resource="nodemetrics", timeout_s=_ANSWER_S)
        return decoded(body, _METRIC.decode, "update nodemetrics", "a NodeMetric")

    def delete_metric(self, name: str, uid: str) -> None:
        """Delete it, if it is still the one with this UID. KubeGone: it is not."""
        path = f"{NODE_METRICS_PATH}/{quote(name, safe='')}"
        body = msgspec.json.encode({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}})
        self._transport.delete(path, body, resource="nodemetrics", timeout_s=_ANSWER_S)

    def change_topology(self, name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Read a NodeResourceTopology and put what `change` makes of it in its place. KubeConflict: another was faster.

        Its list of zones can only be written as a whole, and the agent of the node writes it too.
        """
        path = f"{TOPOLOGIES_PATH}/{quote(name, safe='')}"
        body = self._transport.get(path, verb="get", resource="noderesourcetopologies", timeout_s=_ANSWER_S)
        written = decoded(body, _TOPOLOGY.decode, "get noderesourcetopologies", "an object")
        changed = msgspec.json.encode(change(written))
        self._transport.put(path, changed, resource="noderesourcetopologies", timeout_s=_ANSWER_S)


def _body(metric: WrittenMetric) -> bytes:
    return encoded(metric, NODE_METRIC_VERSION, "NodeMetric")
