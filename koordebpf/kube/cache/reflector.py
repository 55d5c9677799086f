"""One resource kept up to date by list and watch, in a thread of its own.

    list, in pages ──► watch from the list's resourceVersion ──► ended: watch again from the last event or bookmark
         ▲                                                       broken: back off, then the same
         └── 410 Gone, as status or as event ◄───────────────────┘

A watch lasts for half an hour to an hour, as the server ends it by itself. Bookmarks, which kube-apiserver sends once a
minute, prove meanwhile that it lives. They come only once something newer than the watch's beginning has happened, so a
watch without one may be sound: it is reopened, which proves as much. One that has sent bookmarks and falls silent is
broken. A peer that is gone without a word is found by TCP in 50 s (`wires`).

Lists that are older than what is known come from a server that lags, and are ignored; or from an etcd that was restored
from a backup. After `Pace.restored_s` of nothing else, each on a connection of its own, they are the truth.

Each watch is an HTTP/1.1 connection. HTTP/2 would carry all of them on one, but urllib3 reads an HTTP/2 answer to its
end before it gives any of it, and speaks one request at a time (urllib3/http2/connection.py): no watch works by it. A
client that does (httpx with h2) is 9 MiB more.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import KubeBusy, KubeDenied, KubeError, KubeGone, KubeSilent
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kube.body import MALFORMED, malformed
from koordebpf.kube.cache.list_stream import LIMITS, Limits, Listing, Page, pages
from koordebpf.kube.cache.store import CHANGES, Identity, Read, Table, is_older, version_of
from koordebpf.kube.http.deadlines import OpenExchange
from koordebpf.kube.http.refusal import Backoff, refusal
from koordebpf.kube.http.transport import MAX_LINE_BYTES, Transport
from koordebpf.units import NS_PER_MS

_CLOSE_S: Final = 0.9  # threads end within a second
_MIN_LISTS: Final = 3  # until they are the truth
T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_SLOW_TIMES: Final = 10  # Why: a CRD that is not installed is else a third of all requests
_CHECK_EVERY: Final = 4  # silent watches: the server's version is asked for, one request more
_LIFE_NS = (
    100 * NS_PER_MS
)  # Why: an age that guards judge by the second; of a burst of heartbeats one is as good as all


def close_reflectors(reflectors: Sequence[Reflector[Any]], transport: Transport) -> None:
    """Cut the connections of `transport` and end the threads."""
    for reflector in reflectors:
        reflector.stop()
    transport.close()
    deadline = time.monotonic() + _CLOSE_S
    for reflector in reflectors:
        reflector.join(max(0.0, deadline - time.monotonic()))


class OlderLists:
    """Those that came one after another, none older than the one before, and nothing newer between them."""

    def __init__(self, restored_s: float) -> None:
        self._restored_s = restored_s
        self._since_s = 0.0
        self._version = ""
        self.count = 0

    def forget(self) -> None:
        """Take it that a list came which is not older."""
        self.count = 0

    def are_true(self, version: str, now_s: float) -> bool:
        """Count one more; tell whether they have lasted for so long that they are what the cluster has now."""
        if not self.count or is_older(version, self._version):
            self.count, self._since_s = 0, now_s
        self.count += 1
        self._version = version
        return self.count >= _MIN_LISTS and now_s - self._since_s >= self._restored_s


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how long to ask. Seconds.

    Why: 30 to 60 min is what kube-apiserver gives a watch that asks for nothing (--min-request-timeout); 0.5 to 30 s of
    back-off is client-go's reflector, rounded.
    """

    first_s: float = 0.5  # back-off after the first failure …
    cap_s: float = 30.0  # … and at most
    slow_s: float = 60.0  # after 404 of what may be absent; up to ten times, as after 401 and 403 of the never allowed
    watch_s: int = 1800  # up to twice as long, by chance: servers that restart are not asked by all nodes at once
    grace_s: float = 15.0
    silence_s: float = 75.0  # of what guards judge by. Why: bookmarks come 60 to 63 s apart
    quiet_s: float = 1800.0  # of anything else, while no bookmark has come …
    bookmarks_s: float = 300.0  # … and once one has
    restored_s: float = 120.0
    answer_s: float = 15.0  # a page of a list, to its end
    page: int = 500


class Resource(msgspec.Struct, frozen=True):
    """What to list and watch; `name` as RBAC spells it.

    `is_proven`: its age is judged by the second, so that each `Pace.silence_s` has to bring a proof that it is current.
    `absence`: what to say where the server does not have it.
    """

    name: str
    path: str
    field_selector: str
    may_be_absent: bool = False  # 404 is an answer, not a failure
    is_proven: bool = False
    absence: str | None = None


class ResourceView(msgspec.Struct, Generic[T], frozen=True):
    """What a reflector knows. `synced_at_ns` 0: no list yet. `is_absent`: the server does not have the resource.

    `is_denied`: its last answer was 401 or 403. `is_open`: its watch is open, and not silent for longer than it may be.
    """

    objects: tuple[T, ...] = ()
    synced_at_ns: int = 0
    is_absent: bool = False
    is_denied: bool = False
    is_open: bool = False
    problems: tuple[str, ...] = ()


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


_EVENT = decoder(_Event)


class _ErrorObject(msgspec.Struct, frozen=True):
    code: int = 500


class Reflector(Generic[T]):
    """Keeps `view` equal to what the server has; calls `publish(is_news)` after each change and sign of life.

    `page_bytes`: of a page of a list; one with more is asked for again in parts.
    """

    page_bytes = LIMITS.page_bytes

    def __init__(
        self,
        transport: Transport,
        resource: Resource,
        decode: Callable[[msgspec.Raw], T] | Table[T],
        publish: Callable[[bool], None],
        pace: Pace,
        decode_event: Callable[[bytes], tuple[str, Identity, T] | None] = lambda _: None,
        restored: Callable[[], None] = lambda: None,
    ) -> None:
        """Take what is listed by `decode`, or into that table; a line of the watch by `decode_event` where that can.

        `restored` is called where the server turns out to have gone back in time.
        """
        self.view: ResourceView[T] = ResourceView()
        self._transport = transport
        self._resource = resource
        self._table: Table[T] = decode if isinstance(decode, Table) else Table(resource.name, decode)
        self._publish = publish
        self._decode_event = decode_event
        self._pace = pace
        self._backoff = Backoff(pace.first_s, pace.cap_s)
        self._slow = Backoff(pace.slow_s, pace.slow_s * _SLOW_TIMES)
        self._denied = Backoff(pace.first_s, pace.slow_s * _SLOW_TIMES)
        self._must_list = True
        self._was_gone = False  # 410 with no sign of health since
        self._restored = restored
        self._older = OlderLists(pace.restored_s)
        self._silences = 0  # watches in a row that said nothing, since the last one that broke
        self._has_bookmark = False  # the watch that is open
        self._open: OpenExchange | None = None
        self._is_open = False
        self._is_restored = False  # the next list is true, whatever its version …
        self._trusts_any = False  # … as of when the thread took note
        self._recall = threading.Event()  # list again; the watch that is open is to end
        self._stop = threading.Event()
        self._supervisor = Supervisor(f"kube-{resource.name}")
        self._thread = self._supervisor.thread(self._run, again=True)

    def start(self) -> None:
        """Begin to list."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; its request ends when the transport is closed."""
        self._stop.set()

    def relist(self) -> None:
        """List again and accept older versions: the server has gone back in time."""
        self._is_restored = True
        self.recall()

    def recall(self) -> None:
        """List again; a watch that is open ends."""
        self._recall.set()
        if (watch := self._open) is not None:
            watch.end()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._stop.wait(self._round())

    # One list where needed and one watch. Returns how long to wait before the next.
    def _round(self) -> float:
        try:
            if self._recall.is_set():
                self._recall.clear()
                self._must_list = True
                if self._is_restored:  # another thread sets it
                    self._is_restored, self._trusts_any = False, True
            if self._must_list:
                self._list()
                self._trusts_any = False
                self._slow.reset()
            is_healthy = self._watch()
        except KubeError as e:
            self._silences = 0
            return 0.0 if self._stop.is_set() else self._after(e)
        except Exception as e:
            # A bug must not leave a node with a picture that silently stands still.
            self._supervisor.failed(e)
            self._show(problem=f"watch {self._resource.name}: internal error, see the log")
            return self._backoff.next_s()
        if is_healthy:
            self._was_gone = False
            self._backoff.reset()
            return 0.0
        return self._backoff.next_s()

    def _after(self, error: KubeError) -> float:
        match error:
            case KubeGone(status=410):
                self._must_list = True
                if not self._was_gone:
                    self._was_gone = True
                    return 0.0
                wait_s = self._backoff.next_s()
            case KubeGone(status=404) if self._resource.may_be_absent:
                self._must_list = True
                is_news = self._table.clear() or not self.view.is_absent
                self._show(is_news=is_news, is_alive=True, is_absent=True, problem=self._resource.absence)
                return self._slow.next_s()
            # An API server that has just started says 403 until it has read its roles: what was allowed once will be
            # again, and what never was is asked for soon, and then ever more rarely.
            case KubeDenied() if not self.view.synced_at_ns:
                wait_s = self._denied.next_s()
            case KubeBusy():
                wait_s = max(error.retry_after_s or 0.0, self._backoff.next_s())
            case _:
                wait_s = self._backoff.next_s()
        self._show(problem=str(error), is_denied=isinstance(error, KubeDenied))
        return wait_s

    def _list(self) -> None:
        items: list[Read[T]] = []
        version = ""
        # No resourceVersion: the newest there is. 0 would take whatever this server has cached, however old.
        for page in self._pages({"fieldSelector": self._resource.field_selector}, self._resource.path, self._pace.page):
            items += map(self._table.read, page.items)
            items += page.left_out
            version = page.version
        self._refuse_older(version)
        is_news = self._table.replace_read(items, version)
        self._must_list = False
        self._show(is_news=is_news, is_alive=True)

    # Raises KubeError: the list is of a server that lags, as far as can be known yet.
    def _refuse_older(self, version: str) -> None:
        known, name = self._table.version, self._resource.name
        if self._trusts_any or not is_older(version, known):
            self._older.forget()
            return
        if not self._older.are_true(version, time.monotonic()):
            # The next one may reach another server.
            self._transport.forget_connections()
            raise KubeError(
                f"list {name}: resourceVersion {version} is older than the known {known}; the answer is ignored"
            )
        _LOG.warning(
            "list %s: %d lists in %.0f s or more, each on a connection of its own, were older (resourceVersion %s) "
            "than the known %s: etcd was restored from a backup, and what it has is taken",
            *(name, self._older.count, self._pace.restored_s, version, known),
        )
        self._older.forget()
        self._restored()

    def _pages(self, query: dict[str, str], path: str, first: int) -> Iterator[Page[T]]:
        listing = Listing(path, query, self._resource.name, self._pace.answer_s)
        return pages(self._transport, listing, Limits(first, self._pace.page, self.page_bytes, MAX_LINE_BYTES))

    # True if the watch showed life: without it the next one must not follow at once.
    def _watch(self) -> bool:
        pace, resource = self._pace, self._resource
        watch_s = round(pace.watch_s * random.uniform(1.0, 2.0))
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "fieldSelector": resource.field_selector,
            "resourceVersion": self._table.version,
            "timeoutSeconds": str(watch_s),
        }
        began = time.monotonic()
        is_healthy = self._has_bookmark = False
        try:
            with self._transport.lines(
                self._path(),
                query,
                resource=resource.name,
                within_s=watch_s + pace.grace_s,
                silence_s=pace.silence_s if resource.is_proven else pace.quiet_s,
                opened=self._opened,
            ) as lines:
                self._is_open = True
                self._show(is_alive=True)
                for line in lines:
                    self._apply_line(line)
                    is_healthy = True
                    self._was_gone = False
                    self._backoff.reset()
        except KubeError as e:
            if self._recall.is_set():
                return True
            if self._has_bookmark or not isinstance(e, KubeSilent):
                raise
            self._fell_silent()
            return True
        finally:
            self._is_open, self._open = False, None
        lasted_s = time.monotonic() - began
        if lasted_s < pace.watch_s:
            self._silences = 0
        self._show(is_alive=True)
        return is_healthy or lasted_s >= pace.watch_s / 2

    def _path(self) -> str:
        return self._resource.path

    def _opened(self, watch: OpenExchange) -> None:
        self._open = watch
        if self._recall.is_set():
            watch.end()

    # Nothing has happened, or the server has gone back in time: then nothing will until it has caught up.
    def _fell_silent(self) -> None:
        if self._silences % _CHECK_EVERY == 0:
            page = next(self._pages({"fieldSelector": self._resource.field_selector}, self._path(), 1))
            self._must_list = is_older(page.version, self._table.version)
        self._silences += 1

    def _apply_line(self, line: bytes) -> None:
        if (decoded := self._decode_event(line)) is not None:
            self._changed(is_news=self._table.apply_decoded(*decoded))
            return
        try:
            event = _EVENT.decode(line)
        except MALFORMED as e:
            # What it said is unknown, and a new list is the only way to learn it.
            self._must_list = True
            raise malformed(f"watch {self._resource.name}", "a line is no event", e) from e
        match event.type:
            case kind if kind in CHANGES:
                self._changed(is_news=self._table.apply(kind, event.object))
            case "BOOKMARK":
                self._table.move_on(version_of(event.object))
                self._has_bookmark = True
                if self._open is not None:
                    self._open.expect(self._pace.bookmarks_s)
                self._show(is_alive=True)
            case "ERROR":
                raise self._error(event.object)
            case unknown:
                raise KubeError(f"watch {self._resource.name}: unknown event type {unknown!r}")

    def _changed(self, *, is_news: bool) -> None:
        if is_news or time.monotonic_ns() - self.view.synced_at_ns > _LIFE_NS:
            self._show(is_news=is_news, is_alive=True)

    def _error(self, raw: msgspec.Raw) -> KubeError:
        try:
            code = decoder(_ErrorObject).decode(raw).code
        except MALFORMED:
            code = 500
        return refusal(code, {}, bytes(raw), "watch", self._resource.name)

    def _show(
        self,
        *,
        is_news: bool = False,
        is_alive: bool = False,
        is_absent: bool = False,
        is_denied: bool = False,
        problem: str | None = None,
    ) -> None:
        problems = (*((problem,) if problem else ()), *self._table.problems.values())
        # The first answer is news even if it is empty: to know that there is nothing is not to know nothing.
        is_first = is_alive and not self.view.synced_at_ns
        is_other = (is_absent, is_denied, problems) != (self.view.is_absent, self.view.is_denied, self.view.problems)
        is_news = is_news or is_first or is_other
        self.view = ResourceView(
            objects=self._table.objects if is_news else self.view.objects,
            synced_at_ns=time.monotonic_ns() if is_alive else self.view.synced_at_ns,
            is_absent=is_absent,
            is_denied=is_denied,
            is_open=self._is_open,
            problems=problems,
        )
        self._publish(is_news)
        if is_alive:
            self._supervisor.worked()
