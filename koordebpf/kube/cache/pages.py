"""The pages of a list. Of one that is too large fewer objects are asked for at a time.

So large objects cost requests, and no view: only one that is too large by itself is left out, and named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import msgspec

from koordebpf.errors import KubeTooLarge
from koordebpf.kube.cache.store import Read, cut_list, decode_list
from koordebpf.kube.malformed import MALFORMED, malformed

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a list: its version, what continues it ("": nothing does), its size, and its objects."""

    version: str
    continue_: str
    bytes: int
    items: Sequence[msgspec.Raw]
    left_out: tuple[Read[T], ...] = ()


class Limits(NamedTuple):
    """How many objects are asked for at `first` and at `most`; the bytes of a page, and those of one object alone."""

    first: int
    most: int
    page_bytes: int
    object_bytes: int


def pages(ask: Callable[[int], Page[T]], query: dict[str, str], limits: Limits) -> Iterator[Page[T]]:
    """Yield the pages of a list.

    Args:
        ask: answers the query as it stands, or raises KubeTooLarge where that has more bytes than it is given.
        query: of the list, in which `limit` and `continue` are set.
        limits: of a page.
    Raises:  KubeError: there is no answer, or it is no list.
    """
    limit = limits.first
    while True:
        query["limit"] = str(limit)
        try:
            page = ask(limits.page_bytes if limit > 1 else limits.object_bytes)
        except KubeTooLarge as error:
            if limit > 1:
                limit = max(limit // 4, 1)
                continue
            page = _without(error, limits.object_bytes, is_first="continue" not in query)
        yield page
        if not page.continue_:
            return
        query["continue"] = page.continue_
        # As many more as would fill half a page, if they are as large; what is larger is asked for again.
        limit = max(min(limit * 4, limit * limits.page_bytes // (2 * max(page.bytes, 1)), limits.most), 1)


def page_of(body: bytes, resource: str) -> Page[T]:
    """Return what an answer holds.

    Raises:  KubeError: it is no list.
    """
    try:
        listed = decode_list(body)
    except MALFORMED as error:
        raise malformed(f"list {resource}", "the answer is not a list", error) from error
    return Page(listed.metadata.resourceVersion, listed.metadata.continue_, len(body), listed.items or ())


# A first page that nothing continues may be the whole list of a server that knows no limit: it is not taken.
def _without(error: KubeTooLarge, object_bytes: int, *, is_first: bool) -> Page[T]:
    if (found := cut_list(error.head)) is None or (is_first and not found[0].continue_):
        raise error
    metadata, who = found
    why = msgspec.DecodeError(f"it has more than {object_bytes} bytes")
    return Page(metadata.resourceVersion, metadata.continue_, object_bytes, (), (Read[T](who, error=why),))
