"""One resource kept up to date by list and watch, in a thread of its own.

    list, in pages ──► watch from the list's resourceVersion ──► ended: watch again from the last event or bookmark
         ▲                                                       broken: back off, then the same
         └── 410 Gone, as status or as event ◄───────────────────┘

A watch asks the server to end it after `Pace.watch_s`; one that has not ended `Pace.grace_s` later is cut. So a
connection that died without a word, which TCP would not notice for a quarter of an hour, or on which a server sends a
line that never ends, is found within their sum.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from koordebpf.errors import KubeBusy, KubeDenied, KubeError, KubeGone
from koordebpf.kube.backoff import Backoff
from koordebpf.kube.table import CHANGES, Identity, ObjectList, Table, decode_list, is_older, version_of
from koordebpf.kube.transport import Transport, refusal
from koordebpf.units import NS_PER_MS

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_LIFE_NS = (
    100 * NS_PER_MS
)  # Why: an age that guards judge by the second; of a burst of heartbeats one is as good as all


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how long to ask. Seconds.

    Why: bookmarks come about once a minute and shortly before a watch ends, so watches of a minute resume from a recent
    resourceVersion even where nothing happens; 0.5 to 30 s of back-off is client-go's reflector, rounded.
    """

    first_s: float = 0.5  # back-off after the first failure …
    cap_s: float = 30.0  # … and at most
    slow_s: float = 60.0  # after 401 and 403 of what never was allowed, and 404 of what may be absent
    watch_s: int = 60
    grace_s: float = 15.0
    answer_s: float = 15.0  # a page of a list, to its end
    page: int = 500


class Resource(msgspec.Struct, frozen=True):
    """What to list and watch; `name` as RBAC spells it."""

    name: str
    path: str
    field_selector: str
    may_be_absent: bool = False  # 404 is an answer, not a failure


class ResourceView(msgspec.Struct, Generic[T], frozen=True):
    """What a reflector knows. `synced_at_ns` 0: no list yet. `is_absent`: the server does not have the resource.

    `is_denied`: its last answer was 401 or 403.
    """

    objects: tuple[T, ...] = ()
    synced_at_ns: int = 0
    is_absent: bool = False
    is_denied: bool = False
    problems: tuple[str, ...] = ()


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


_EVENT = msgspec.json.Decoder(_Event)


class _ErrorObject(msgspec.Struct, frozen=True):
    code: int = 500


class Reflector(Generic[T]):
    """Keeps `view` equal to what the server has; calls `publish(is_news)` after each change and sign of life."""

    def __init__(
        self,
        transport: Transport,
        resource: Resource,
        decode: Callable[[msgspec.Raw], T],
        publish: Callable[[bool], None],
        pace: Pace,
        decode_event: Callable[[bytes], tuple[str, Identity, T] | None] = lambda _: None,
    ) -> None:
        """Take what is listed by `decode`, and a line of the watch by `decode_event` where that can."""
        self.view: ResourceView[T] = ResourceView()
        self._transport = transport
        self._resource = resource
        self._table: Table[T] = Table(resource.name, decode)
        self._publish = publish
        self._decode_event = decode_event
        self._pace = pace
        self._backoff = Backoff(pace.first_s, pace.cap_s)
        self._must_list = True
        self._was_gone = False  # 410 with no sign of health since
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kube-{resource.name}", daemon=True)

    def start(self) -> None:
        """Begin to list."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; its request ends when the transport is closed."""
        self._stop.set()

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
            if self._must_list:
                self._list()
            is_healthy = self._watch()
        except KubeError as e:
            return 0.0 if self._stop.is_set() else self._after(e)
        except Exception:
            # A bug must not leave a node with a picture that silently stands still.
            _LOG.exception("watching %s failed", self._resource.name)
            self._show(problem=f"watch {self._resource.name}: internal error, see the log")
            return self._backoff.next_s()
        if is_healthy:
            self._was_gone = False
            self._backoff.reset()
            return 0.0
        return self._backoff.next_s()

    def _after(self, error: KubeError) -> float:
        pace = self._pace
        match error:
            case KubeGone(status=410):
                self._must_list = True
                if not self._was_gone:
                    self._was_gone = True
                    return 0.0
                wait_s = self._backoff.next_s()
            case KubeGone(status=404) if self._resource.may_be_absent:
                self._must_list = True
                self._show(is_news=self._table.clear() or not self.view.is_absent, is_alive=True, is_absent=True)
                return pace.slow_s * random.uniform(1.0, 1.1)
            # What was allowed once: an API server that has just started says 403 until it has read its roles.
            case KubeDenied() if self.view.synced_at_ns:
                wait_s = self._backoff.next_s()
            case KubeDenied():
                wait_s = pace.slow_s * random.uniform(1.0, 1.1)
            case KubeBusy():
                wait_s = max(error.retry_after_s or 0.0, self._backoff.next_s())
            case _:
                wait_s = self._backoff.next_s()
        self._show(problem=str(error), is_denied=isinstance(error, KubeDenied))
        return wait_s

    def _list(self) -> None:
        items: list[msgspec.Raw] = []
        # No resourceVersion: the newest there is. 0 would take whatever this server has cached, however old.
        query = {"fieldSelector": self._resource.field_selector, "limit": str(self._pace.page)}
        while True:
            page = self._page(query)
            items += page.items or ()
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        version = page.metadata.resourceVersion
        if is_older(version, self._table.version):
            # Another server behind the balancer that lags, or etcd restored from a backup: then this goes on, the state
            # ages, and guards stop acting on it until the agent is started anew.
            raise KubeError(
                f"list {self._resource.name}: resourceVersion {version} is older than the known "
                f"{self._table.version}; the answer is ignored"
            )
        is_news = self._table.replace(items, version)
        self._must_list = False
        self._show(is_news=is_news, is_alive=True)

    def _page(self, query: dict[str, str]) -> ObjectList:
        body = self._transport.get(
            self._resource.path, query, verb="list", resource=self._resource.name, timeout_s=self._pace.answer_s
        )
        try:
            return decode_list(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise KubeError(f"list {self._resource.name}: the answer is not a list: {e}") from e

    # True if the watch showed life: without it the next one must not follow at once.
    def _watch(self) -> bool:
        watch_s = round(self._pace.watch_s * random.uniform(1.0, 1.1))
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "fieldSelector": self._resource.field_selector,
            "resourceVersion": self._table.version,
            "timeoutSeconds": str(watch_s),
        }
        began = time.monotonic()
        is_healthy = False
        with self._transport.lines(
            self._resource.path, query, resource=self._resource.name, within_s=watch_s + self._pace.grace_s
        ) as lines:
            self._show(is_alive=True)
            for line in lines:
                self._take(line)
                is_healthy = True
                self._was_gone = False
                self._backoff.reset()
        self._show(is_alive=True)
        return is_healthy or time.monotonic() - began >= watch_s / 2

    def _take(self, line: bytes) -> None:
        if (told := self._decode_event(line)) is not None:
            self._changed(is_news=self._table.apply_decoded(*told))
            return
        try:
            event = _EVENT.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            # What it said is unknown, and a new list is the only way to learn it.
            self._must_list = True
            raise KubeError(f"watch {self._resource.name}: a line is no event: {e}") from e
        match event.type:
            case kind if kind in CHANGES:
                self._changed(is_news=self._table.apply(kind, event.object))
            case "BOOKMARK":
                self._table.move_on(version_of(event.object))
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
            code = msgspec.json.decode(raw, type=_ErrorObject).code
        except (msgspec.DecodeError, UnicodeDecodeError):
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
            problems=problems,
        )
        self._publish(is_news)
