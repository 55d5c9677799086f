"""This node's NodeMetric by list and watch: only agents that report it ask for it."""

from __future__ import annotations

from collections.abc import Callable

from koordebpf.kube.cache.node_metric import NODE_METRICS_PATH
from koordebpf.kube.cache.own_node_metric import OwnNodeMetric, decode_own_node_metric
from koordebpf.kube.cache.reflector import Pace, Reflector, Resource
from koordebpf.kube.http.transport import Transport


class NodeMetricReflector(Reflector[OwnNodeMetric]):
    """Keeps `view` equal to the node's NodeMetric.

    Needs:   RBAC list and watch on nodemetrics.slo.koordinator.sh. Without the right that is a problem, and without the
             definition there is none.
    """

    def __init__(
        self, transport: Transport, node_name: str, publish: Callable[[bool], None], pace: Pace | None = None
    ) -> None:
        mine = f"metadata.name={node_name}"
        resource = Resource("nodemetrics", NODE_METRICS_PATH, mine, may_be_absent=True)
        super().__init__(transport, resource, decode_own_node_metric, publish, pace or Pace())
