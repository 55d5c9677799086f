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

import functools
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from koordebpf.decoding import decoder
from koordebpf.kube.body import MALFORMED
from koordebpf.kube.cache.objects import (
    ObjectMeta,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from koordebpf.kube.cache.reflector import Pace, Reflector, Resource
from koordebpf.kube.cache.store import Identity, Table, identify
from koordebpf.kube.http.transport import Transport

# Of text. Why: 800 budgets as people write them, in 1 MiB; a selector of many short values takes twelve times its text.
MAX_ALL: Final = 256 << 10
MAX_ONE: Final = 16 << 10  # Why: people's have 50 to 200 bytes
_OTHER: Final = 256  # what one costs beside names and selector
_NAMED: Final = 4  # namespaces in sentences
_SELECTOR = decoder(dict[str, object] | None)
_GATHER_S: Final = 1.0  # Why: the pods of a rollout come within a second, and each new namespace is one list
_FIRST_PAGE: Final = 16
_LIST_BYTES: Final = 16 << 20  # of one namespace; who writes more is not read to the end
_GROUP: Final = "/apis/policy/v1"
_NAME: Final = "poddisruptionbudgets"
_ABSENCE: Final = (
    f"{_NAME}: the API server does not serve policy/v1: koordebpf needs Kubernetes 1.22 or newer to evict by API"
    " and to know what would be refused"
)


# The PodDisruptionBudgets of some namespaces, in a form that is bounded whatever tenants write. Pure.
#
# Of each only what an eviction is judged by is kept. One whose selector is longer than `MAX_ONE`, and what comes when
# `MAX_ALL` is used up, is left out, and a problem says so: the API server applies it all the same.


class _Spec(msgspec.Struct, frozen=True):
    selector: msgspec.Raw = msgspec.Raw(b"null")
    unhealthyPodEvictionPolicy: str | None = None


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0


class _Pdb(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()
    spec: _Spec = _Spec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


_PDB = decoder(_Pdb)


def _decode(raw: msgspec.Raw) -> PodDisruptionBudget:
    # Labels, annotations and managedFields decide nothing here, and may be a quarter of a megabyte.
    pdb = _PDB.decode(raw)
    meta = ObjectMeta(pdb.metadata.name, pdb.metadata.namespace, pdb.metadata.uid, pdb.metadata.generation)
    selector = _SELECTOR.decode(pdb.spec.selector)
    return PodDisruptionBudget(meta, PodDisruptionBudgetSpec(selector, pdb.spec.unhealthyPodEvictionPolicy), pdb.status)


def _size(raw: msgspec.Raw) -> int:
    # What cannot be read is small: it is left out with a sentence of its own.
    try:
        pdb = _PDB.decode(raw)
    except MALFORMED:
        return 0
    return _OTHER + len(pdb.metadata.name) + len(pdb.metadata.namespace) + len(memoryview(pdb.spec.selector))


class PdbTable(Table[PodDisruptionBudget]):
    """Lists come a namespace at a time, and events of any; those of a namespace that was not listed are passed over."""

    def __init__(self) -> None:
        super().__init__("poddisruptionbudgets", _decode)
        self._listed_by: dict[str, str] = {}  # namespace → version of its list
        self._sizes: dict[str, int] = {}  # by UID
        self._seen: set[str] = set()  # UIDs of the list that is being taken
        self._cut: set[str] = set()  # namespaces of which some are not kept

    @property
    def namespaces(self) -> frozenset[str]:
        """Those that were listed."""
        return frozenset(self._listed_by)

    def begin(self, namespace: str) -> None:
        """Expect the pages of a namespace's list."""
        self._cut.discard(namespace)
        self._seen = set()

    def add_page(self, items: Sequence[msgspec.Raw]) -> None:
        """Take one page of them."""
        for raw in items:
            who = identify(raw)
            self._seen.add(who.uid)
            if (size := self._size_if_kept(who, raw)) is None:
                self._drop(who.uid)
                continue
            self._put(who, functools.partial(self._decode, raw), self._known)
            self._sizes[who.uid] = size

    def end(self, namespace: str, version: str, *, is_whole: bool) -> None:
        """Drop all objects: there are none, or with `is_whole` false they can no longer be read."""
        for uid in [uid for uid, (_, pdb) in self._known.items() if pdb.metadata.namespace == namespace]:
            if uid not in self._seen:
                self._drop(uid)
        if not is_whole:
            self._cut.add(namespace)
        self._listed_by[namespace] = version
        self._report_cut()

    def forget(self, namespaces: frozenset[str]) -> None:
        """Drop what is known of these."""
        for uid in [uid for uid, (_, pdb) in self._known.items() if pdb.metadata.namespace in namespaces]:
            self._drop(uid)
        for namespace in namespaces:
            self._listed_by.pop(namespace, None)
        self._cut -= namespaces
        self._report_cut()

    def clear(self) -> bool:
        """Take it that the resource does not exist; True if that changed anything."""
        had = bool(self._known)
        self.forget(self.namespaces)
        self.version = ""
        return had

    def apply(self, kind: str, raw: msgspec.Raw) -> bool:
        """Take an event ADDED, MODIFIED or DELETED; True if it changed anything."""
        who = identify(raw)
        if who.namespace not in self._listed_by:
            self.move_on(who.resourceVersion)
            return False
        size = 0 if kind == "DELETED" else self._size_if_kept(who, raw)
        is_news = super().apply("DELETED" if size is None else kind, raw)
        if who.uid not in self._known:
            self._sizes.pop(who.uid, None)
        elif is_news:
            self._sizes[who.uid] = size or 0
        return is_news

    def _listed_at(self, who: Identity) -> str:
        return self._listed_by.get(who.namespace, "")

    # None: there is no room for it.
    def _size_if_kept(self, who: Identity, raw: msgspec.Raw) -> int | None:
        size = _size(raw)
        used = sum(self._sizes.values()) - self._sizes.get(who.uid, 0)
        if size <= MAX_ONE and used + size <= MAX_ALL:
            return size
        self._cut.add(who.namespace)
        self._report_cut()
        return None

    def _drop(self, uid: str) -> None:
        self._known.pop(uid, None)
        self._sizes.pop(uid, None)
        self.problems.pop(uid, None)

    def _report_cut(self) -> None:
        self.problems.pop("", None)
        if self._cut:
            names = sorted(self._cut)
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            self.problems[""] = (
                f"poddisruptionbudgets: not all of namespace {', '.join(names[:_NAMED])}{more} are kept (selectors of"
                f" up to {MAX_ONE >> 10} KiB, {MAX_ALL >> 10} KiB in all): the API server applies the others all the"
                " same, and may refuse an eviction that the plan allows"
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
            self._pdbs.add_page(page.items)
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
