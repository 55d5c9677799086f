"""What is asked of the API server to look at a node: which rights this client has, and what Katalyst has written."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import KubeError, KubeGone
from koordebpf.kube.body import MALFORMED, reason
from koordebpf.kube.cache.cnr import CNR_PATH, CustomNodeResource
from koordebpf.kube.http.transport import Transport

_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_TIMEOUT_S = 5.0


class _Status(msgspec.Struct, frozen=True):
    allowed: bool = False


class _Review(msgspec.Struct, frozen=True):
    status: _Status = _Status()


def may(transport: Transport, verb: str, resource: str, name: str) -> bool:
    """Tell whether this client has a right on one object of the core group, outside of namespaces.

    Source: authorization.k8s.io/v1, SelfSubjectAccessReview; each authenticated client may ask.
    Raises: KubeError: no answer, or one that is none.
    """
    asked = {"resourceAttributes": {"verb": verb, "resource": resource, "name": name}}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": asked}
    raw = transport.post(_PATH, msgspec.json.encode(body), resource="selfsubjectaccessreviews", timeout_s=_TIMEOUT_S)
    try:
        return decoder(_Review).decode(raw).status.allowed
    except MALFORMED as error:
        raise KubeError(f"the answer to a SelfSubjectAccessReview is none: {reason(error)}") from error


def cnr_now(transport: Transport, node_name: str) -> CustomNodeResource | None:
    """Return a node's CustomNodeResource as it is now; None: there is none, or no such definition.

    Raises: KubeError: no answer, or one that is none. KubeDenied: no right to get it.
    """
    path = f"{CNR_PATH}/{quote(node_name, safe='')}"
    try:
        raw = transport.get(path, verb="get", resource="customnoderesources", timeout_s=_TIMEOUT_S)
    except KubeGone:
        return None
    try:
        return decoder(CustomNodeResource).decode(raw)
    except MALFORMED as error:
        raise KubeError(f"CustomNodeResource {node_name}: {reason(error)}") from error
