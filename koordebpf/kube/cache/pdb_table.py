"""The PodDisruptionBudgets of some namespaces, in a form that is bounded whatever tenants write. Pure.

Of each only what an eviction is judged by is kept. One whose selector is longer than `MAX_ONE`, and what comes when
`MAX_ALL` is used up, is left out, and a problem says so: the API server applies it all the same.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import msgspec

from koordebpf.kube.cache.objects import (
    ObjectMeta,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from koordebpf.kube.cache.store import Identity, Table, identify
from koordebpf.kube.malformed import MALFORMED

# Of text. Why: 800 budgets as people write them, in 1 MiB; a selector of many short values takes twelve times its text.
MAX_ALL: Final = 256 << 10
MAX_ONE: Final = 16 << 10  # Why: people's have 50 to 200 bytes
_OTHER: Final = 256  # what one costs beside names and selector
_NAMED: Final = 4  # namespaces in sentences


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


_PDB = msgspec.json.Decoder(_Pdb)
_SELECTOR = msgspec.json.Decoder(dict[str, object] | None)


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

    def take_page(self, items: Sequence[msgspec.Raw]) -> None:
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
        self._say_what_is_cut()

    def forget(self, namespaces: frozenset[str]) -> None:
        """Drop what is known of these."""
        for uid in [uid for uid, (_, pdb) in self._known.items() if pdb.metadata.namespace in namespaces]:
            self._drop(uid)
        for namespace in namespaces:
            self._listed_by.pop(namespace, None)
        self._cut -= namespaces
        self._say_what_is_cut()

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
        self._say_what_is_cut()
        return None

    def _drop(self, uid: str) -> None:
        self._known.pop(uid, None)
        self._sizes.pop(uid, None)
        self.problems.pop(uid, None)

    def _say_what_is_cut(self) -> None:
        self.problems.pop("", None)
        if self._cut:
            names = sorted(self._cut)
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            self.problems[""] = (
                f"poddisruptionbudgets: not all of namespace {', '.join(names[:_NAMED])}{more} are kept (selectors of"
                f" up to {MAX_ONE >> 10} KiB, {MAX_ALL >> 10} KiB in all): the API server applies the others all the"
                " same, and may refuse an eviction that the plan allows"
            )
