"""The labels of all namespaces, of them those that selectors name, by list and watch.

A pod of a namespace that is new on this node is judged within milliseconds, so those of other nodes are known too. Of
each its name and the labels asked for are kept, and a list is read in pages of about 1 MiB, of which nothing else is
left: 5,000 namespaces with one such label take 3 MiB (measured by tracemalloc).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import KubeError
from koordebpf.kube.body import MALFORMED
from koordebpf.kube.cache.list_stream import Page
from koordebpf.kube.cache.objects import Namespace, ObjectMeta
from koordebpf.kube.cache.reflector import Pace, Reflector, Resource
from koordebpf.kube.cache.store import Identity
from koordebpf.kube.http.transport import Transport

MAX_NAMESPACES: Final = 20_000  # Why: twice what Kubernetes is tested with; each takes 0.7 KiB with one label


class _Meta(Identity, frozen=True, omit_defaults=True):
    labels: dict[str, str] | None = None


class _Labelled(msgspec.Struct, frozen=True):
    metadata: _Meta


_LABELLED = decoder(_Labelled)


class NamespaceReflector(Reflector[Namespace]):
    """Keeps `view` equal to the cluster's namespaces, each with its name and those of its labels that are in `keys`."""

    page_bytes = 1 << 20

    def __init__(self, transport: Transport, keys: frozenset[str], publish: Callable[[bool], None], pace: Pace) -> None:
        self._keys = keys
        resource = Resource("namespaces", "/api/v1/namespaces", "")
        super().__init__(transport, resource, self._decode, publish, pace)

    def _decode(self, raw: msgspec.Raw) -> Namespace:
        meta = self._kept(raw)
        return Namespace(ObjectMeta(name=meta.name, labels=meta.labels))

    def _kept(self, raw: msgspec.Raw) -> _Meta:
        meta = _LABELLED.decode(raw).metadata
        labels = {key: value for key, value in (meta.labels or {}).items() if key in self._keys}
        return msgspec.structs.replace(meta, labels=labels or None)

    # What cannot be read stays as it is, for the table to say so.
    def _pages(self, query: dict[str, str], path: str, first: int) -> Iterator[Page[Namespace]]:
        listed = 0
        for page in super()._pages(query, path, first):
            listed += len(page.items)
            if listed > MAX_NAMESPACES:
                raise _too_many("list")
            yield replace(page, items=[self._slim(raw) for raw in page.items])

    # A new list says whether there are still so many.
    def _changed(self, *, is_news: bool) -> None:
        if self._table.size > MAX_NAMESPACES:
            self._must_list = True
            raise _too_many("watch")
        super()._changed(is_news=is_news)

    def _slim(self, raw: msgspec.Raw) -> msgspec.Raw:
        try:
            return msgspec.Raw(msgspec.json.encode(_Labelled(self._kept(raw))))
        except MALFORMED:
            return raw.copy()


def _too_many(verb: str) -> KubeError:
    return KubeError(f"{verb} namespaces: there are more than {MAX_NAMESPACES}: their labels are not kept")
