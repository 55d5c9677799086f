"""The pages of a list. Of one that is too large fewer objects are asked for at a time.

So large objects cost requests, and no view: only one that is too large by itself is left out, and named. Where an
answer is too large though one object was asked for, that one is, or the server knows no `limit`: it is read object by
object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import msgspec

from koordebpf.errors import KubeTooLarge
from koordebpf.kube.cache.list_stream import ListStream
from koordebpf.kube.cache.store import Identity, Read, decode_list, too_large
from koordebpf.kube.http.transport import Transport
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
    has_more: bool = False  # the next page is of the same answer


class Limits(NamedTuple):
    """How many objects are asked for at `first` and at `most`; the bytes of a page, and those of one object alone."""

    first: int
    most: int
    page_bytes: int
    object_bytes: int


class Listing(NamedTuple):
    """What is listed: `query` without `limit` and `continue`, and the seconds that an answer may take to its end."""

    path: str
    query: Mapping[str, str]
    resource: str
    answer_s: float


def pages(transport: Transport, listing: Listing, limits: Limits) -> Iterator[Page[T]]:
    """Yield the pages of a list.

    Raises:  KubeError: there is no answer, or it is no list.
    """
    query, limit = dict(listing.query), limits.first
    while True:
        query["limit"] = str(limit)
        asked = listing._replace(query=query)
        answer: Iterable[Page[T]]
        try:
            answer = (_page(transport, asked, limits.page_bytes if limit > 1 else limits.object_bytes),)
        except KubeTooLarge:
            if limit > 1:
                limit = max(limit // 4, 1)
                continue
            answer = _streamed(transport, asked, limits.object_bytes)
        size = 0
        for page in answer:
            yield page
            size += page.bytes
        if not page.continue_:
            return
        query["continue"] = page.continue_
        # As many more as would fill half a page, if they are as large; what is larger is asked for again.
        limit = max(min(limit * 4, limit * limits.page_bytes // (2 * max(size, 1)), limits.most), 1)


def _page(transport: Transport, asked: Listing, max_bytes: int) -> Page[T]:
    path, query, resource, answer_s = asked
    body = transport.get(path, query, verb="list", resource=resource, timeout_s=answer_s, max_bytes=max_bytes)
    try:
        listed = decode_list(body)
    except MALFORMED as error:
        raise malformed(f"list {resource}", "the answer is not a list", error) from error
    return Page(listed.metadata.resourceVersion, listed.metadata.continue_, len(body), listed.items or ())


# Each object is a page, and the last page is that of the list alone.
def _streamed(transport: Transport, asked: Listing, object_bytes: int) -> Iterator[Page[T]]:
    path, query, resource, answer_s = asked
    with transport.parts(path, query, verb="list", resource=resource, within_s=answer_s) as parts:
        stream = ListStream(parts, object_bytes)
        try:
            for each in stream:
                if isinstance(each, Identity):
                    yield Page("", "", object_bytes, (), (too_large(each, object_bytes),), has_more=True)
                else:
                    yield Page("", "", len(each), (each,), has_more=True)
        except MALFORMED as error:
            raise malformed(f"list {resource}", "the answer is not a list", error) from error
    yield Page(stream.metadata.resourceVersion, stream.metadata.continue_, 0, ())
