"""Pods, Node, NodeSLO, slo-controller-config, PodDisruptionBudgets and NodeResourceTopology from the API server.

By list and watch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kube.cache.bounded_pods import BoundedPods
from koordebpf.kube.cache.objects import ClusterState, Namespace, Pod, PodDisruptionBudget
from koordebpf.kube.cache.reflector import Pace, Reflector, Resource, close_reflectors
from koordebpf.kube.cache.store import (
    decode_config_map,
    decode_node,
    decode_topology,
    keep_raw,
)
from koordebpf.kube.config_map import CONFIG_MAP, ConfigMapName
from koordebpf.kube.http.transport import Transport
from koordebpf.kube.sources.cnr import CnrReflector
from koordebpf.kube.sources.namespaces import NamespaceReflector
from koordebpf.kube.sources.pdbs import PdbReflector

T = TypeVar("T")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What of the cluster is to be known beside this node's pods and its own objects.

    `may_be_evicted`: of namespaces with such a pod the PodDisruptionBudgets are.
    `namespace_labels`: of namespaces these are; None: they are not read.
    `with_cnr`: the CustomNodeResource is.
    `config_map`: read where the cluster does not serve NodeSLO.
    `keys`: as of `BoundedPods`.
    """

    may_be_evicted: Callable[[Pod], bool] = lambda _: True
    namespace_labels: frozenset[str] | None = None
    with_cnr: bool = False
    config_map: ConfigMapName = CONFIG_MAP
    keys: frozenset[str] = frozenset()


class ApiSource:
    """This node's part of the cluster. Owns `transport` and closes it.

    Needs:   RBAC list and watch on pods, nodes and nodeslos.slo.koordinator.sh; on the configmap `Wanted.config_map`
             only where the cluster does not serve NodeSLO, which is asked again within ten minutes. On
             poddisruptionbudgets.policy and noderesourcetopologies.topology.node.k8s.io it may be missing: then that
             is a problem, and nothing is known of them. So are namespaces, which are read only
             where a setting selects by their labels, and CustomNodeResources, with `Wanted.with_cnr`.
    Synced:  `synced_at_ns` is the pods' last sign of life (list, watch opened or ended in good order, event, bookmark),
             and 0 until pods and Node are known. Its age stays below Pace.silence_s (75 s) while the connection is
             healthy, and grows without bound when it is not. Node, NodeSLO and ConfigMap count with their own last sign
             of life while their watch is not open: while it is, TCP and the server's own end of it bound their age.
             PodDisruptionBudgets are left out of it: the API server judges by its own, however old ours are. So is
             NodeResourceTopology: no eviction depends on it, and kubelet's own file says most of it. One whose watch of
             CustomNodeResources is refused knows none.
    """

    name = "api"

    def __init__(
        self, transport: Transport, node_name: str, pace: Pace | None = None, wanted: Wanted | None = None
    ) -> None:
        """Ask by that transport for what is of this node."""
        if not node_name or "," in node_name or "=" in node_name:
            raise ConfigError("node name", node_name, "must be the name of this node's Node object")
        self._transport = transport
        self._node_name = node_name
        self._pace = pace or Pace()
        wanted = wanted or Wanted()
        self._may_be_evicted = wanted.may_be_evicted
        self._config_map = wanted.config_map
        self._evictable_in: frozenset[str] = frozenset()  # namespaces
        self._pods_in: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._is_closed = False
        self._state = ClusterState(version=0, synced_at_ns=0)
        self._wake: Callable[[], None] = lambda: None
        mine = f"metadata.name={node_name}"
        pods = Resource("pods", "/api/v1/pods", f"spec.nodeName={node_name}", is_proven=True)
        bounded = BoundedPods(wanted.keys)
        self._pods = Reflector(
            self._transport, pods, bounded.table(), self._combine, self._pace, bounded.event, self._go_back
        )
        self._nodes = self._reflect(Resource("nodes", "/api/v1/nodes", mine), decode_node)
        self._nodeslos = self._reflect(
            Resource("nodeslos", "/apis/slo.koordinator.sh/v1alpha1/nodeslos", mine, may_be_absent=True), keep_raw
        )
        self._config: Reflector[dict[str, str]] | None = None
        self._pdbs = PdbReflector(self._transport, self._combine_pdbs, self._pace)
        self._pdb_problems: tuple[str, ...] = ()
        topologies = Resource(
            "noderesourcetopologies",
            "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies",
            mine,
            may_be_absent=True,
        )
        self._topologies = self._reflect(topologies, decode_topology)
        self._cnrs = CnrReflector(transport, node_name, self._combine, self._pace) if wanted.with_cnr else None
        self._namespaces: NamespaceReflector | None = None
        self._namespace_problems: tuple[str, ...] = ()
        if (labels := wanted.namespace_labels) is not None:
            self._namespaces = NamespaceReflector(transport, labels, self._combine_namespaces, self._pace)

    def start(self, wake: Callable[[], None]) -> None:
        """Start to list. Does not wait: `state()` says when something is known."""
        self._wake = wake
        for reflector in [*self._reflectors(), *self._beside()]:
            reflector.start()

    def refresh(self, now_ns: int) -> None:
        """Do nothing: the threads look by themselves."""

    def nudge(self) -> None:
        """Do nothing: the watch reports new pods by itself."""

    def state(self) -> ClusterState:
        """Return what is known now."""
        return self._state

    def close(self) -> None:
        """Cut the connections and end the threads."""
        with self._lock:
            self._is_closed = True
        close_reflectors([*self._reflectors(), *self._beside()], self._transport)

    # The pods' reflector found that etcd was restored; the others may have nothing that tells them for hours.
    def _go_back(self) -> None:
        for reflector in (self._nodes, self._nodeslos, *((self._config,) if self._config else ()), *self._beside()):
            reflector.relist()

    def _beside(self) -> tuple[Reflector[Any], ...]:
        asked = (self._cnrs, self._namespaces)
        return self._pdbs, self._topologies, *(each for each in asked if each is not None)

    def _reflect(self, resource: Resource, decode: Callable[[msgspec.Raw], T]) -> Reflector[T]:
        return Reflector(self._transport, resource, decode, self._combine, self._pace)

    # Called by every reflector's thread, after each change and each sign of life.
    def _combine(self, is_news: bool) -> None:
        with self._lock:
            if self._is_closed:
                return
            if self._nodeslos.view.is_absent and self._config is None:
                named = self._config_map
                resource = Resource("configmaps", named.list_path, named.selector, may_be_absent=True)
                self._config = self._reflect(resource, decode_config_map)
                self._config.start()
            pods, node, nodeslo = self._pods.view, self._nodes.view, self._nodeslos.view
            if is_news and pods.synced_at_ns:
                self._pods_in = frozenset(pod.metadata.namespace for pod in pods.objects)
                self._evictable_in = frozenset(p.metadata.namespace for p in pods.objects if self._may_be_evicted(p))
                self._pdbs.want(self._evictable_in)
            views = [r.view for r in self._reflectors()]
            beside = [r.view for r in self._beside()]
            namespaces, since_ns = self._namespaces_here()
            synced_at_ns = 0
            if pods.synced_at_ns and node.synced_at_ns:
                # What never was readable is a problem and no part of the picture; what once was, and is not, ages it.
                behind = [view.synced_at_ns for view in views if view.synced_at_ns and not view.is_open]
                synced_at_ns = min([pods.synced_at_ns, *behind])
            if not is_news:
                self._state = msgspec.structs.replace(
                    self._state, synced_at_ns=synced_at_ns, namespaces_since_ns=since_ns
                )
                return
            problems = [problem for view in (*views, *beside) for problem in view.problems]
            if node.synced_at_ns and not node.objects and not node.problems:
                problems.append(f"nodes: there is no Node {self._node_name}")
            self._state = ClusterState(
                version=self._state.version + 1,
                synced_at_ns=synced_at_ns,
                pods=pods.objects,
                node=_only(node.objects),
                nodeslo=_only(nodeslo.objects),
                slo_controller_config=_only(self._config.view.objects) if self._config else None,
                pdbs=self._pdbs_here(),
                topology=_only(self._topologies.view.objects),
                cnr=_only(self._cnrs.view.objects) if self._cnrs and not self._cnrs.view.is_denied else None,
                namespaces=namespaces,
                namespaces_since_ns=since_ns,
                is_denied=pods.is_denied or any(view.is_denied and view.synced_at_ns for view in views),
                problems=tuple(problems),
            )
        self._wake()

    # Those of other namespaces change all the time, and are no news here.
    def _combine_pdbs(self, is_news: bool) -> None:
        if is_news and (self._pdbs_here() != self._state.pdbs or self._pdbs.view.problems != self._pdb_problems):
            self._pdb_problems = self._pdbs.view.problems
            self._combine(True)

    # None: never listed, or not served.
    def _pdbs_here(self) -> tuple[PodDisruptionBudget, ...] | None:
        view = self._pdbs.view
        if not view.synced_at_ns or view.is_absent:
            return None
        return tuple(pdb for pdb in view.objects if pdb.metadata.namespace in self._evictable_in)

    # The labels of others are no news here.
    def _combine_namespaces(self, is_news: bool) -> None:
        assert self._namespaces is not None  # it calls
        problems, here = self._namespaces.view.problems, self._namespaces_here()[0]
        is_news = is_news and (here != self._state.namespaces or problems != self._namespace_problems)
        self._namespace_problems = problems
        self._combine(is_news)

    # And since when they may be old; None: they are not.
    def _namespaces_here(self) -> tuple[tuple[Namespace, ...] | None, int | None]:
        view = self._namespaces.view if self._namespaces else None
        if view is None or not view.synced_at_ns:
            return None, None
        here = tuple(each for each in view.objects if each.metadata.name in self._pods_in)
        return here, None if view.is_open else view.synced_at_ns

    def _reflectors(self) -> list[Reflector[Any]]:
        return [self._pods, self._nodes, self._nodeslos, *((self._config,) if self._config else ())]


# The selectors name one object; a server that answers with more is not believed in any.
def _only(objects: tuple[T, ...]) -> T | None:
    return objects[0] if len(objects) == 1 else None
