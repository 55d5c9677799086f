"""PodDisruptionBudgets of the namespaces from which a pod of this node may be evicted, and of no others.

What was weighed:

- A list and watch of all: each node holds the cluster's, and one tenant with 700 large ones ends every agent.
- To ask when a plan has a victim: no watch, but a list for each namespace and decision at the worst moment, and `plan`
  knows nothing of them.
- A watch for each namespace: the least traffic, but up to 110 connections.

Chosen: a list for each namespace when its first such pod comes, in pages of about 1 MiB, and one watch: of that
namespace where it is the only one, which is common, as few of a node's pods may be evicted; else of all, where a line
on any other namespace is dropped before it is decoded. Then every change of any budget's status comes to this node:
where that is too much, leave the right to poddisruptionbudgets out, and the API server applies them all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from koordebpf.kube.cache.objects import PodDisruptionBudget
from koordebpf.kube.cache.pdb_table import PdbTable
from koordebpf.kube.cache.reflector import Pace, Reflector, Resource
from koordebpf.kube.http.transport import Transport

_GATHER_S: Final = 1.0  # Why: the pods of a rollout come within a second, and each new namespace is one list
_FIRST_PAGE: Final = 16
_LIST_BYTES: Final = 16 << 20  # of one namespace; who writes more is not read to the end
_GROUP: Final = "/apis/policy/v1"
_NAME: Final = "poddisruptionbudgets"
_ABSENCE: Final = (
    f"{_NAME}: the API server does not serve policy/v1: koordebpf needs Kubernetes 1.22 or newer to evict by API"
    " and to know what would be refused"
)


class PdbReflector(Reflector[PodDisruptionBudget]):
    """Keeps `view` equal to the PodDisruptionBudgets of the namespaces that were asked for by `want`, and bounded."""

    page_bytes = 1 << 20

    def __init__(self, transport: Transport, publish: Callable[[bool], None], pace: Pace) -> None:
        self._pdbs = PdbTable()
        self._wanted: frozenset[str] | None = None  # None: not known yet
        self._is_stale = True
        resource = Resource("poddisruptionbudgets", f"{_GROUP}/{_NAME}", "", may_be_absent=True, absence=_ABSENCE)
        super().__init__(transport, resource, self._pdbs, publish, pace)

    def want(self, namespaces: frozenset[str]) -> None:
        """Learn of these, soon; of others nothing need be known from the next watch on."""
        if namespaces != self._wanted:
            is_first, self._wanted = self._wanted is None, namespaces
            if is_first or not namespaces <= self._pdbs.namespaces:
                self.recall()

    def stop(self) -> None:
        """Ask the thread to end."""
        super().stop()
        self._recall.set()

    def _round(self) -> float:
        if self._must_list:  # not for a namespace more, but because what is known cannot be trusted
            self._is_stale = True
        elif self._recall.is_set():
            self._stop.wait(_GATHER_S)
        if self._wanted is not None:
            self._pdbs.forget(self._pdbs.namespaces - self._wanted)
        return super()._round()

    def _list(self) -> None:
        if self._wanted is None:
            return
        before = self._table.objects
        missing = self._wanted if self._is_stale or self._trusts_any else self._wanted - self._pdbs.namespaces
        versions = [self._list_one(namespace) for namespace in sorted(missing)]
        # A watch continues from where it was: what a new namespace's list already has is skipped. One that has to start
        # over starts from the first list.
        if versions and missing == self._wanted:
            self._pdbs.version = versions[0]
        self._must_list = self._is_stale = False
        self._show(is_news=self._table.objects != before, is_alive=True)

    def _list_one(self, namespace: str) -> str:
        read, version, is_whole = 0, "", True
        self._pdbs.begin(namespace)
        for page in self._pages({}, _path(namespace), _FIRST_PAGE):
            if not version:
                version = page.version
                self._refuse_older(version)
            self._pdbs.take_page(page.items)
            read += page.bytes
            is_whole = is_whole and not page.left_out
            if read > _LIST_BYTES:
                is_whole = is_whole and not page.continue_ and not page.has_more
                break
        self._pdbs.end(namespace, version, is_whole=is_whole)
        return version

    def _watch(self) -> bool:
        if self._wanted and self._pdbs.namespaces:
            return super()._watch()
        if not self._stop.is_set():  # `stop` sets the one before the other, and `_round` clears the other
            self._recall.wait()
        return True

    def _path(self) -> str:
        namespaces = self._pdbs.namespaces
        return _path(next(iter(namespaces))) if len(namespaces) == 1 else super()._path()


def _path(namespace: str) -> str:
    return f"{_GROUP}/namespaces/{quote(namespace, safe='')}/{_NAME}"
