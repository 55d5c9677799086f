"""The pods of a cluster as commands from outside look for them: the agents', and those that a user asks about."""

from __future__ import annotations

from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import KubeGone
from koordebpf.kube.body import MALFORMED, malformed
from koordebpf.kube.cache.list_stream import Listing, objects
from koordebpf.kube.cache.objects import ObjectMeta, PodCondition
from koordebpf.kube.http.transport import Transport

SYSTEM_NAMESPACE: Final = "koordebpf-system"
AGENTS: Final = "app.kubernetes.io/name=koordebpf,app.kubernetes.io/component=agent"
CONTAINER: Final = "agent"
MODE: Final = "koordebpf.io/mode"
_TIMEOUT_S: Final = 30.0

T = TypeVar("T")


class _Port(msgspec.Struct, frozen=True):
    name: str = ""
    containerPort: int = 0


class _Container(msgspec.Struct, frozen=True):
    name: str = ""
    image: str = ""
    ports: list[_Port] = []


class _Spec(msgspec.Struct, frozen=True):
    nodeName: str = ""
    containers: list[_Container] = []


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[PodCondition] | None = None
    qosClass: str = ""


class RemotePod(msgspec.Struct, frozen=True):
    """corev1.Pod as far as it is shown from outside of its node."""

    metadata: ObjectMeta
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def place(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.metadata.namespace, self.metadata.name

    @property
    def key(self) -> str:
        """`namespace/name`, for people."""
        return "/".join(self.place)

    @property
    def mode(self) -> str:
        """Of an agent: `observe` or `enforce`, as its label says."""
        return (self.metadata.labels or {}).get(MODE, "")

    @property
    def is_ready(self) -> bool:
        """Whether its condition Ready is true, and it is not being deleted."""
        ready = any(each.type == "Ready" and each.status == "True" for each in self.status.conditions or ())
        return ready and self.metadata.deletionTimestamp is None

    @property
    def metrics_port(self) -> int:
        """Of an agent: the port called `http`; 0: it has none."""
        return next(
            (port.containerPort for one in self.spec.containers for port in one.ports if port.name == "http"), 0
        )


class RemoteNode(msgspec.Struct, frozen=True):
    """corev1.Node: its name."""

    metadata: ObjectMeta


class RemoteSource(msgspec.Struct, frozen=True):
    """corev1.EventSource."""

    component: str = ""
    host: str = ""


class RemoteEvent(msgspec.Struct, frozen=True):
    """corev1.Event on a pod."""

    metadata: ObjectMeta
    type: str = ""
    reason: str = ""
    message: str = ""
    source: RemoteSource = RemoteSource()
    reportingComponent: str = ""
    reportingInstance: str = ""
    lastTimestamp: str | None = None
    eventTime: str | None = None
    count: int | None = None

    @property
    def component(self) -> str:
        """Who reported it."""
        return self.source.component or self.reportingComponent

    @property
    def time(self) -> str:
        """When it was last seen, RFC 3339."""
        return self.lastTimestamp or self.eventTime or self.metadata.creationTimestamp or ""


def agents_of(transport: Transport, namespace: str = SYSTEM_NAMESPACE) -> dict[str, RemotePod]:
    """Return the agent of each node, by the node's name: where an update runs two, the one that is ready.

    Raises:  KubeError: they cannot be listed.
    """
    found = pods_of(transport, namespace, AGENTS)
    best: dict[str, RemotePod] = {}
    for pod in sorted(found, key=lambda each: (each.is_ready, each.metadata.creationTimestamp or "")):
        if pod.spec.nodeName:
            best[pod.spec.nodeName] = pod
    return dict(sorted(best.items()))


def node_names(transport: Transport) -> list[str]:
    """Return the names of all Nodes.

    Raises:  KubeError: they cannot be listed.
    """
    listing = Listing("/api/v1/nodes", {}, "nodes", _TIMEOUT_S)
    return sorted(each.metadata.name for each in objects(transport, listing, decoder(RemoteNode).decode))


def pods_of(transport: Transport, namespace: str, selector: str = "") -> list[RemotePod]:
    """Return the pods of a namespace, of all where it is empty, with labels that a selector chooses.

    Raises:  KubeError: they cannot be listed.
    """
    query = {"labelSelector": selector} if selector else {}
    listing = Listing(_path("pods", namespace), query, "pods", _TIMEOUT_S)
    return list(objects(transport, listing, decoder(RemotePod).decode))


def pod_now(transport: Transport, namespace: str, name: str) -> RemotePod | None:
    """Return a pod as it is now; None: there is none.

    Raises:  KubeError: it cannot be read.
    """
    path = f"{_path('pods', namespace)}/{quote(name, safe='')}"
    try:
        raw = transport.get(path, verb="get", resource="pods", timeout_s=_TIMEOUT_S)
    except KubeGone:
        return None
    return _decoded(raw, RemotePod, path)


def events_on(transport: Transport, namespace: str, name: str) -> list[RemoteEvent]:
    """Return the Events on pods of a name, the oldest first. Kubernetes keeps them for an hour by default.

    Raises:  KubeError: they cannot be listed.
    """
    query = {"fieldSelector": f"involvedObject.kind=Pod,involvedObject.name={name}"}
    listing = Listing(_path("events", namespace), query, "events", _TIMEOUT_S)
    found = objects(transport, listing, decoder(RemoteEvent).decode)
    return sorted(found, key=lambda each: each.time)


def page_of(transport: Transport, pod: RemotePod, port: int, page: str, *, timeout_s: float) -> bytes:
    """Return what a pod answers over HTTP, through the API server's proxy.

    Raises:  KubeError: no answer.
    """
    namespace, name = pod.place
    path = f"{_path('pods', namespace)}/{quote(name, safe='')}:{port}/proxy/{page}"
    return transport.get(path, verb="get", resource="pods/proxy", timeout_s=timeout_s, accept="text/plain")


def log_of(transport: Transport, pod: RemotePod, *, timeout_s: float, previous: bool = False) -> bytes:
    """Return what a pod's agent has written to its log, 64 MiB at most.

    Raises:  KubeError: no answer.
    """
    namespace, name = pod.place
    query = {"container": CONTAINER, **({"previous": "true"} if previous else {})}
    path = f"{_path('pods', namespace)}/{quote(name, safe='')}/log"
    return transport.get(path, query, verb="get", resource="pods/log", timeout_s=timeout_s, accept="*/*")


def _path(resource: str, namespace: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/{resource}" if namespace else f"/api/v1/{resource}"


def _decoded(raw: bytes, kind: type[T], path: str) -> T:
    try:
        return decoder(kind).decode(raw)
    except MALFORMED as error:
        raise malformed(path, f"must be a {kind.__name__.strip('_')}", error) from error
