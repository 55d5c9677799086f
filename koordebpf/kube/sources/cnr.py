"""This node's CustomNodeResource by list and watch: only agents with Katalyst's eviction manager ask for it."""

from __future__ import annotations

from collections.abc import Callable

from koordebpf.kube.cache.cnr import CNR_PATH, CustomNodeResource, decode_cnr
from koordebpf.kube.cache.reflector import Pace, Reflector, Resource
from koordebpf.kube.http.transport import Transport


class CnrReflector(Reflector[CustomNodeResource]):
    """Keeps `view` equal to the node's CustomNodeResource.

    Needs:   RBAC list and watch on customnoderesources.node.katalyst.kubewharf.io. Without the right that is a problem,
             and without the definition there is none.
    """

    def __init__(self, transport: Transport, node_name: str, publish: Callable[[bool], None], pace: Pace) -> None:
        mine = f"metadata.name={node_name}"
        resource = Resource("customnoderesources", CNR_PATH, mine, may_be_absent=True)
        super().__init__(transport, resource, decode_cnr, publish, pace)
