"""The deletion of a pod, for the killer of Katalyst's that is no Eviction. It sends once and never retries."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from koordebpf.kube.http.transport import Transport


class PodDeletions:
    """A small client for deletions. Owns `transport` and closes it.

    Needs:   RBAC delete on pods: deploy/components/pod-deletion.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._transport.prepare()

    def delete(self, namespace: str, name: str, uid: str, *, timeout_s: float, grace_s: int | None = None) -> None:
        """Ask for the deletion of exactly this pod. No PodDisruptionBudget is asked.

        The pod's own grace period, or `grace_s` where that is given, holds; with 0 the Pod object is gone before its
        processes are. A deletion that runs can be shortened only. Asking twice does no harm, as of an Eviction
        (`kube.clients.evictions`).

        Source:  meta/v1 DeleteOptions; k8s.io/apiserver pkg/registry/rest/delete.go.
        Raises:  KubeBusy: 429, the server's own load is in the way; 503.
                 KubeGone: 404, 410, or 409 because the pod of that name has another UID.
                 KubeDenied: 401, 403.
                 KubeError: anything else; `retry` is true for 5xx, other conflicts, time-outs and broken connections.
        """
        options: dict[str, object] = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
        self._transport.delete(path, msgspec.json.encode(options), resource="pods", timeout_s=timeout_s)

    def close(self) -> None:
        """Cut the connection; requests that wait fail at once."""
        self._transport.close()
