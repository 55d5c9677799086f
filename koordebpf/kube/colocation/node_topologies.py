"""The NodeResourceTopology of one node: read, made and replaced as a whole, with all that others keep in it.

It sends once and never retries. The object is replaced in the version that was read, so that what another wrote
meanwhile is never lost.

Source: noderesourcetopology-api pkg/apis/topology/v1alpha1/types.go.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec

from koordebpf.decoding import convert, decoder
from koordebpf.errors import KubeGone
from koordebpf.kube.body import MALFORMED, malformed
from koordebpf.kube.http.transport import Transport

TOPOLOGIES_PATH: Final = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"

Object = dict[str, Any]


class _Entry(msgspec.Struct, frozen=True):
    manager: str = ""
    time: datetime | None = None


class _Meta(msgspec.Struct, frozen=True):
    managedFields: list[_Entry] | None = None


class NodeTopologies:
    """One node's object. Owns `transport` and closes it.

    Needs:   RBAC get, create and update on noderesourcetopologies.topology.node.k8s.io.
    Raises:  KubeError and its kin, each of the calls.
    """

    def __init__(self, transport: Transport, node_name: str) -> None:
        self._transport = transport
        self.node_name = node_name
        self._path = f"{TOPOLOGIES_PATH}/{quote(node_name, safe='')}"

    def read(self, *, timeout_s: float) -> Object | None:
        """Return the object as it is; None: there is none, or no definition of it."""
        try:
            body = self._transport.get(self._path, verb="get", resource="noderesourcetopologies", timeout_s=timeout_s)
        except KubeGone:
            return None
        try:
            found = decoder(Object).decode(body)
        except MALFORMED as e:
            raise malformed("noderesourcetopologies", "the answer is not a NodeResourceTopology", e) from e
        if not isinstance(found.get("metadata"), dict):
            raise malformed(
                "noderesourcetopologies", "the answer is not a NodeResourceTopology", ValueError("it has no metadata")
            )
        return found

    def create(self, topology: Object, *, timeout_s: float) -> None:
        """Make it. KubeGone: there is no definition of it. KubeConflict: another was faster."""
        body = msgspec.json.encode(topology)
        self._transport.post(TOPOLOGIES_PATH, body, resource="noderesourcetopologies", timeout_s=timeout_s)

    def update(self, topology: Object, *, timeout_s: float) -> None:
        """Replace it. KubeConflict: another wrote since it was read."""
        self._transport.put(
            self._path, msgspec.json.encode(topology), resource="noderesourcetopologies", timeout_s=timeout_s
        )

    def close(self) -> None:
        """Cut the connection; requests that wait fail at once."""
        self._transport.close()


def written_at(found: Object, manager: str) -> datetime | None:
    """Return when a field manager wrote an object last; None: it never did, or the object does not say."""
    try:
        entries = convert(found.get("metadata"), _Meta).managedFields or ()
    except msgspec.ValidationError:
        return None
    times = [each.time for each in entries if each.manager == manager and each.time is not None]
    return max((each if each.tzinfo else each.replace(tzinfo=UTC) for each in times), default=None)
