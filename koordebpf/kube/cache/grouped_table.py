"""A table whose objects are asked for by group, as the pods of a Node, and that knows which groups have changed.

With a hundred thousand objects a tuple of all, as `Table.objects` is, for each event would be the most of the work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from koordebpf.kube.cache.store import Identity, Read, Table

T = TypeVar("T")
_NO_OBJECTS: Final = ()


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

    def take_changed(self) -> set[str]:
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

    def _take(self, kind: str, who: Identity, read: Callable[[], T]) -> bool:
        uid = who.uid
        before = {uid: self._known[uid]} if uid in self._known else {}
        is_news = super()._take(kind, who, read)
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
