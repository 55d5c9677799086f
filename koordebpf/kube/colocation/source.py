"""All pods, NodeMetrics and NodeResourceTopologies of a cluster by list and watch, asked for by Node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from koordebpf.kube.cache.node_metric import NODE_METRICS_PATH
from koordebpf.kube.cache.reflector import Pace, Reflector, Resource, close_reflectors
from koordebpf.kube.cache.store import Identity, Read, Table
from koordebpf.kube.colocation.node_topologies import TOPOLOGIES_PATH
from koordebpf.kube.http.transport import Transport

T = TypeVar("T")
_NO_OBJECTS: Final = ()
# Of a pod without a Node, and of one that has ended, nothing is asked: the server leaves them out of list and watch.
_POD_SELECTOR: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
P = TypeVar("P")
M = TypeVar("M")
Z = TypeVar("Z")


# A table whose objects are asked for by group, as the pods of a Node, and that knows which groups have changed.
#
# With a hundred thousand objects a tuple of all, as `Table.objects` is, for each event would be the most of the work.


class GroupedTable(Table[T]):
    """Filled by a reflector's thread, read by another's. An object of the group "" is kept and in no group."""

    def __init__(self, resource: str, decode: Callable[[msgspec.Raw], T], group_of: Callable[[T], str]) -> None:
        super().__init__(resource, decode)
        self._group_of = group_of
        self._groups: dict[str, dict[str, T]] = {}  # group → UID → object
        self._changed: set[str] = set()
        self._guard = threading.Lock()

    @property
    def objects(self) -> tuple[T, ...]:
        """None: who wants them asks for a group."""
        return _NO_OBJECTS

    def group(self, name: str) -> tuple[T, ...]:
        """Return the objects of one group."""
        with self._guard:
            return tuple(self._groups.get(name, {}).values())

    def drain_changed(self) -> set[str]:
        """Return the groups that have changed since the last call."""
        with self._guard:
            changed, self._changed = self._changed, set()
        return changed

    def replace_read(self, items: Sequence[Read[T]], version: str) -> bool:
        """Take a whole new list that was read; True if that changed anything."""
        before = self._known
        is_news = super().replace_read(items, version)
        with self._guard:
            for uid in before.keys() | self._known.keys():
                self._regroup(uid, before, self._known)
        return is_news

    def _apply(self, kind: str, who: Identity, read: Callable[[], T]) -> bool:
        uid = who.uid
        before = {uid: self._known[uid]} if uid in self._known else {}
        is_news = super()._apply(kind, who, read)
        with self._guard:
            self._regroup(uid, before, self._known)
        return is_news

    def _regroup(self, uid: str, before: dict[str, tuple[str, T]], after: dict[str, tuple[str, T]]) -> None:
        old, new = before.get(uid), after.get(uid)
        if old is not None and new is not None and old[1] is new[1]:
            return
        if old is not None and (group := self._group_of(old[1])):
            kept = self._groups.get(group, {})
            kept.pop(uid, None)
            if not kept:
                self._groups.pop(group, None)
            self._changed.add(group)
        if new is not None and (group := self._group_of(new[1])):
            self._groups.setdefault(group, {})[uid] = new[1]
            self._changed.add(group)


class Readers(Generic[P, M, Z]):
    """How objects become what is kept of them, and what Node that is of; "": of none.

    Each raises msgspec.DecodeError where an object cannot be read: it then stays as it was last good, with a sentence.
    """

    def __init__(
        self,
        pod: Callable[[msgspec.Raw], P],
        node_metric: Callable[[msgspec.Raw], M],
        topology: Callable[[msgspec.Raw], Z],
        node_of: Callable[[Any], str],
    ) -> None:
        self.pod = pod
        self.node_metric = node_metric
        self.topology = topology
        self.node_of = node_of


class ColocationSource(Generic[P, M, Z]):
    """Three tables, filled by a thread each. Owns `transport` and closes it.

    Needs:   RBAC list and watch on pods, nodemetrics.slo.koordinator.sh, noderesourcetopologies.topology.node.k8s.io.
    """

    def __init__(self, transport: Transport, readers: Readers[P, M, Z], pace: Pace | None = None) -> None:
        self._transport = transport
        pace = pace or Pace()
        self.pods = GroupedTable("pods", readers.pod, readers.node_of)
        self.node_metrics = GroupedTable("nodemetrics", readers.node_metric, readers.node_of)
        self.topologies = GroupedTable("noderesourcetopologies", readers.topology, readers.node_of)
        pods = Resource("pods", "/api/v1/pods", _POD_SELECTOR)
        metrics = Resource("nodemetrics", NODE_METRICS_PATH, "", may_be_absent=True)
        zones = Resource("noderesourcetopologies", TOPOLOGIES_PATH, "", may_be_absent=True)
        self._pods: Reflector[P] = Reflector(transport, pods, self.pods, self._changed, pace)
        self._node_metrics: Reflector[M] = Reflector(transport, metrics, self.node_metrics, self._changed, pace)
        self._topologies: Reflector[Z] = Reflector(transport, zones, self.topologies, self._changed, pace)

    @property
    def is_synced(self) -> bool:
        """Tell whether each of the three was listed at least once, or is known not to be there."""
        return all(reflector.view.synced_at_ns for reflector in self._reflectors())

    @property
    def serves_node_metrics(self) -> bool:
        """Tell whether the CRD of NodeMetric is installed."""
        return not self._node_metrics.view.is_absent

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences on what could not be read."""
        return tuple(problem for reflector in self._reflectors() for problem in reflector.view.problems)

    def changed(self) -> set[str]:
        """Return the Nodes of which something has changed since the last call."""
        return self.pods.drain_changed() | self.node_metrics.drain_changed() | self.topologies.drain_changed()

    def of(self, node: str) -> tuple[tuple[P, ...], M | None, Z | None]:
        """Return the pods, the NodeMetric and the topology of one Node."""
        metric, topology = self.node_metrics.group(node), self.topologies.group(node)
        return self.pods.group(node), metric[0] if metric else None, topology[0] if topology else None

    def start(self) -> None:
        """Begin to list."""
        for reflector in self._reflectors():
            reflector.start()

    def close(self) -> None:
        """Cut the connections and end the threads."""
        close_reflectors(self._reflectors(), self._transport)

    # Nothing is woken: a number that is a second old is as good, and a busy cluster has hundreds of events in one.
    def _changed(self, is_news: bool) -> None:
        pass

    def _reflectors(self) -> tuple[Reflector[P], Reflector[M], Reflector[Z]]:
        return self._pods, self._node_metrics, self._topologies
