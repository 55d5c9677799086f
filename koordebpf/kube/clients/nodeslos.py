"""What the controller knows of a cluster and writes to it: all Nodes, all NodeSLOs, and slo-controller-config."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from koordebpf.decoding import decoder
from koordebpf.kube.body import decoded, encoded
from koordebpf.kube.cache.objects import ConfigMap
from koordebpf.kube.cache.reflector import Pace, Reflector, Resource, close_reflectors
from koordebpf.kube.clients.events import Regarding, core_event
from koordebpf.kube.config_map import CONFIG_MAP, ConfigMapName
from koordebpf.kube.http.transport import Transport
from koordebpf.kube.sources.manifest import NODESLO_VERSION

NODESLOS_PATH: Final = f"/apis/{NODESLO_VERSION}/nodeslos"
_ANSWER_S: Final = 5.0  # of one write; a lease is given up sooner than one that began under it can still arrive
T = TypeVar("T")


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """metav1.OwnerReference, whole: it is written back."""

    apiVersion: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    blockOwnerDeletion: bool | None = None


class NodeMeta(msgspec.Struct, frozen=True):
    """The fields of a Node that its NodeSLO depends on. Nothing here changes with a heartbeat."""

    name: str
    uid: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class NodeSLOMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of metav1.ObjectMeta that a writer may change, and what says which version it changes."""

    name: str = ""
    uid: str = ""
    resourceVersion: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    ownerReferences: tuple[Owner, ...] = ()
    finalizers: tuple[str, ...] = ()


class NodeSLO(msgspec.Struct, frozen=True, omit_defaults=True):
    """A NodeSLO object; `spec` as decoded from JSON, None where the object has none."""

    metadata: NodeSLOMeta
    spec: Any = None


class ControllerState(msgspec.Struct, frozen=True):
    """What is known of the cluster at one moment. `is_synced`: each of the three was listed at least once.

    `serves_nodeslos`: the CRD is installed. `problems` are sentences on what could not be read.
    """

    nodes: tuple[NodeMeta, ...] = ()
    nodeslos: tuple[NodeSLO, ...] = ()
    config_map: ConfigMap | None = None
    is_synced: bool = False
    serves_nodeslos: bool = True
    problems: tuple[str, ...] = ()


class _Node(msgspec.Struct, frozen=True):
    metadata: NodeMeta


_NODE = decoder(_Node)
_NODESLO = decoder(NodeSLO)
_CONFIG_MAP = decoder(ConfigMap)


def _decode_node(raw: msgspec.Raw) -> NodeMeta:
    return _NODE.decode(raw).metadata


class ControllerSource:
    """The cluster by list and watch. Owns `transport` and closes it.

    Needs:   RBAC list and watch on nodes and nodeslos.slo.koordinator.sh, and on the configmap `config_map`.
    """

    def __init__(
        self,
        transport: Transport,
        pace: Pace | None = None,
        decode_node: Callable[[msgspec.Raw], NodeMeta] | None = None,
        config_map: ConfigMapName = CONFIG_MAP,
    ) -> None:
        """Take Nodes by `decode_node`, which may read more of them than a NodeSLO depends on."""
        self.config_map = config_map
        self._transport = transport
        self._pace = pace or Pace()
        self._lock = threading.Lock()
        self._is_closed = False
        self._state = ControllerState()
        self._wake: Callable[[], None] = lambda: None
        nodes = Resource("nodes", "/api/v1/nodes", "", is_proven=True)
        self._nodes: Reflector[NodeMeta] = Reflector(
            self._transport, nodes, decode_node or _decode_node, self._combine, self._pace, restored=self._go_back
        )
        self._nodeslos = self._reflect(Resource("nodeslos", NODESLOS_PATH, "", may_be_absent=True), _NODESLO.decode)
        named = Resource("configmaps", config_map.list_path, config_map.selector)
        self._configs = self._reflect(named, _CONFIG_MAP.decode)

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to list; `wake` is called from any thread after each change of the state."""
        self._wake = wake
        for reflector in self._reflectors():
            reflector.start()

    def state(self) -> ControllerState:
        """Return what is known now."""
        return self._state

    def close(self) -> None:
        """Cut the connections and end the threads."""
        with self._lock:
            self._is_closed = True
        close_reflectors(self._reflectors(), self._transport)

    def _reflect(self, resource: Resource, decode: Callable[[msgspec.Raw], T]) -> Reflector[T]:
        return Reflector(self._transport, resource, decode, self._combine, self._pace)

    # Called by every reflector's thread, after each change and each sign of life.
    def _combine(self, is_news: bool) -> None:
        if not is_news:
            return
        with self._lock:
            if self._is_closed:
                return
            nodes, nodeslos, configs = self._nodes.view, self._nodeslos.view, self._configs.view
            self._state = ControllerState(
                nodes=nodes.objects,
                nodeslos=nodeslos.objects,
                config_map=configs.objects[0] if len(configs.objects) == 1 else None,
                is_synced=all(view.synced_at_ns for view in (nodes, nodeslos, configs)),
                serves_nodeslos=not nodeslos.is_absent,
                problems=(*nodes.problems, *nodeslos.problems, *configs.problems),
            )
        self._wake()

    # etcd was restored, as the Nodes' list says; the others may have nothing that tells them for hours.
    def _go_back(self) -> None:
        for reflector in (self._nodeslos, self._configs):
            reflector.relist()

    def _reflectors(self) -> tuple[Reflector[NodeMeta], Reflector[NodeSLO], Reflector[ConfigMap]]:
        return self._nodes, self._nodeslos, self._configs


class NodeSLOWriter:
    """Creates and updates NodeSLOs, and says on the ConfigMap what is wrong with it. It sends once and never retries.

    Needs:   RBAC create and update on nodeslos.slo.koordinator.sh, create on events.
    Raises:  KubeError and its kin, each of the three. After a time-out or a broken connection the outcome is unknown.
    """

    def __init__(self, transport: Transport, identity: str) -> None:
        self._transport = transport
        self._identity = identity

    def create(self, nodeslo: NodeSLO) -> NodeSLO:
        """Return the object as the server has it. KubeConflict: there is one already."""
        body = self._transport.post(NODESLOS_PATH, _body(nodeslo), resource="nodeslos", timeout_s=_ANSWER_S)
        return decoded(body, _NODESLO.decode, "create nodeslos", "a NodeSLO")

    def update(self, nodeslo: NodeSLO) -> NodeSLO:
        """Put it in place of the version it was made from. KubeConflict: that is not the newest any more."""
        path = f"{NODESLOS_PATH}/{quote(nodeslo.metadata.name, safe='')}"
        body = self._transport.put(path, _body(nodeslo), resource="nodeslos", timeout_s=_ANSWER_S)
        return decoded(body, _NODESLO.decode, "update nodeslos", "a NodeSLO")

    def warn(self, config_map: ConfigMap, reason: str, message: str, at: datetime) -> None:
        """Record a Warning on this version of the ConfigMap, for `kubectl describe`. KubeConflict: recorded already."""
        meta = config_map.metadata
        regarding = Regarding("ConfigMap", meta.namespace, meta.name, meta.uid)
        # One name for a version and a reason: the next leader, who finds the same, does not say it again.
        name = f"{meta.name}.{meta.resourceVersion}.{reason.lower()}"
        event = core_event(regarding, reason=reason, message=message, at=at, host=self._identity, name=name)
        path = f"/api/v1/namespaces/{quote(meta.namespace, safe='')}/events"
        self._transport.post(path, msgspec.json.encode(event), resource="events", timeout_s=_ANSWER_S)


def _body(nodeslo: NodeSLO) -> bytes:
    return encoded(nodeslo, NODESLO_VERSION, "NodeSLO")
