"""What the agent asks of the API server: evict a pod, record an Event. It sends once and never retries."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote

import msgspec

from koordebpf.kube.clients.events import CLUSTER_NAMESPACE, About, EventType, Regarding, core_event
from koordebpf.kube.http.transport import Transport


class KubeActions:
    """A small client for what changes the cluster. Owns `transport` and closes it.

    Needs:   RBAC create on pods/eviction and on events.
    """

    def __init__(self, transport: Transport, node_name: str) -> None:
        self._transport = transport
        self._transport.prepare()
        self._node_name = node_name

    def evict(self, namespace: str, name: str, uid: str, *, timeout_s: float, grace_s: int | None = None) -> None:
        """Ask for the eviction of exactly this pod. On return the API server has started its deletion.

        The pod's own grace period, or `grace_s` where that is given, and every PodDisruptionBudget hold. A deletion
        that runs can be shortened only. Asking twice does no harm: the UID keeps a new pod of the same name safe, a pod
        that already terminates is accepted again, and one that is gone raises KubeGone.

        After a time-out or a broken connection the outcome is unknown: the eviction may have been done, and it may
        still be done, since the server repeats conflicting writes for up to 10 s. Watch the pod's deletionTimestamp, or
        ask again.

        Source:  policy/v1 Eviction; pkg/registry/core/pod/storage/eviction.go.
        Raises:  KubeBusy: 429, a PodDisruptionBudget or the server's own load is in the way; 503.
                 KubeGone: 404, 410, or 409 because the pod of that name has another UID.
                 KubeDenied: 401, 403.
                 KubeError: anything else; `retry` is true for 5xx, other conflicts, time-outs and broken connections.
        """
        options: dict[str, object] = {"preconditions": {"uid": uid}}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}/eviction"
        self._transport.post(path, msgspec.json.encode(body), resource="pods/eviction", timeout_s=timeout_s)

    def create_event(
        self,
        namespace: str,
        name: str,
        uid: str,
        *,
        reason: str,
        message: str,
        at: datetime,
        timeout_s: float,
        count: int = 1,
        kind: EventType = "Warning",
        action: str | None = None,
        about: About = "Pod",
    ) -> None:
        """Record an Event on a pod or a Node, seen by `kubectl describe`. A message that is too long is cut.

        A Node has no namespace, and its name as `uid`, by which `kubectl describe node` finds kubelet's Events too.

        Raises:  KubeError and its kin, as evict does. KubeGone: the namespace is gone. A repeated request answers
                 409 AlreadyExists: KubeError with `retry` false.
        """
        regarding = Regarding(about, namespace, name, uid)
        host = self._node_name
        body = core_event(
            regarding, reason=reason, message=message, at=at, host=host, count=count, kind=kind, action=action
        )
        path = f"/api/v1/namespaces/{quote(namespace or CLUSTER_NAMESPACE, safe='')}/events"
        self._transport.post(path, msgspec.json.encode(body), resource="events", timeout_s=timeout_s)

    def close(self) -> None:
        """Cut the connection; requests that wait fail at once."""
        self._transport.close()
