"""Calls hooks from a thread each: what calls `call` waits for none of them, and none for another."""

from __future__ import annotations

import contextlib
import functools
import http.client
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from queue import Empty, Queue
from typing import Literal, NamedTuple, Protocol

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, NewConnectionError, TimeoutError

from koordebpf.act.eviction_hook_settings import EvictionHookSettings, WebhookHook, When, url_problem
from koordebpf.kernel.io.closing import have_ended
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kube.http.deadlines import Limit, OpenConnections, pool_classes
from koordebpf.printable import printable
from koordebpf.state.outcome import HookResult
from koordebpf.units import NS_PER_S

Ending = Literal["done", "failed", "timed_out"]
CallOutcome = Literal["done", "failed", "timed_out", "dropped"]
OUTCOMES: tuple[CallOutcome, ...] = ("done", "failed", "timed_out", "dropped")
_READ_BYTES = 4096  # of an answer
_FILE_BYTES = 16 << 10
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")
_OWN = {"Content-Type": "application/json", "User-Agent": "koordebpf"}
_log = logging.getLogger(__name__)
# Why 20: the evictions of two minutes, before and after; a hook that is behind by more is of no use for them.
QUEUED = 20
# Why 20 ms: kills by cgroup have released their memory by then, and a call takes no CPU from them.
REST_S = 0.02
CLOSE_S = 0.5  # Why: as the audit has it; what is sent by then runs to its end
_SHOWN_CHARS = 200
_REMEMBERED = 100  # of each hook. Why: before and after each of the 50 decisions that the agent remembers
_LOGGED_CHARS = 4096
Payload = Callable[[str], bytes]  # the hook's name to what it is called with


# What became of one call of a hook, and what every hook is.


class Ran(msgspec.Struct, frozen=True):
    """How a call ended. `detail`: why not well, as a sentence; `output`: the beginning of what was said back."""

    ending: Ending
    detail: str = ""
    output: str = ""


class Hook(Protocol):
    """One URL. It may wait for as long as its time limit."""

    def call(self, payload: bytes) -> Ran:
        """Call it once, with JSON; return what came of it, and raise nothing that a hook can cause."""


class Webhook:
    """One URL of the settings. `wires` are the open connections of all of them.

    TLS certificates are verified, and environment variables that name proxies are not read.
    """

    def __init__(self, settings: WebhookHook, wires: OpenConnections) -> None:
        self._settings = settings
        self._wires = wires
        self._pool = urllib3.PoolManager(num_pools=1, maxsize=1, cert_reqs="CERT_REQUIRED", ca_certs=settings.ca_file)
        self._pool.pool_classes_by_scheme = pool_classes(wires)
        self._lock = threading.Lock()

    def call(self, payload: bytes) -> Ran:
        """Post the payload; any answer from 200 to 299 is a good one."""
        settings = self._settings
        with self._lock, self._wires.within(settings.timeout_seconds) as limit:
            try:
                return self._post(payload)
            except (HTTPError, http.client.HTTPException, OSError, ValueError) as error:
                return self._failed(error, limit)
            finally:
                # Evictions are rare: a connection that is kept is closed by what lies between long before the next.
                self._pool.clear()

    def _post(self, payload: bytes) -> Ran:
        settings = self._settings
        url = settings.url or read_url(Path(settings.url_file or ""))
        headers = dict(_OWN)
        if settings.headers_file is not None:
            headers |= read_headers(Path(settings.headers_file))
            if not url.startswith("https:"):
                raise ValueError("headersFile needs an https:// url: http is not encrypted")
        response = self._pool.request(
            "POST",
            url,
            body=payload,
            headers=headers,
            timeout=urllib3.Timeout(total=settings.timeout_seconds),
            retries=False,
            redirect=False,
            preload_content=False,
        )
        try:
            said = response.read(_READ_BYTES, decode_content=False).decode(errors="replace")
        finally:
            response.close()
        if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            return Ran("done", "", said)
        is_redirect = response.status < HTTPStatus.BAD_REQUEST
        detail = f"answered {response.status}" + (", and redirects are not followed" if is_redirect else "")
        return Ran("failed", detail, said)

    def _failed(self, error: Exception, limit: Limit) -> Ran:
        # A connection that is refused is of a kind of time-out too, for urllib3.
        if limit.is_over or (isinstance(error, TimeoutError) and not isinstance(error, NewConnectionError)):
            return Ran("timed_out", f"no answer within {self._settings.timeout_seconds} s")
        return Ran("failed", _reason(error))


def read_url(path: Path) -> str:
    """Return the URL that a file holds.

    Raises:  OSError: it cannot be read. ValueError: it holds none; its text, a secret maybe, is not in it.
    """
    url = _read(path).strip()
    if problem := url_problem(url):
        raise ValueError(f"{path}: {problem}")
    return url


def read_headers(path: Path) -> Mapping[str, str]:
    """Return the headers of a file, a line `Name: value` each.

    Raises:  OSError: it cannot be read. ValueError: a line is no header; its text, a secret maybe, is not in it.
    """
    headers: dict[str, str] = {}
    for number, line in enumerate(_read(path).split("\n"), 1):
        if line.strip():
            found = _HEADER.fullmatch(line)
            if found is None:
                raise ValueError(f"{path}:{number}: must be Name: value")
            headers[found[1]] = found[2]
    return headers


def _read(path: Path) -> str:
    with path.open("rb") as file:
        raw = file.read(_FILE_BYTES + 1)
    if len(raw) > _FILE_BYTES:
        raise ValueError(f"{path}: more than {_FILE_BYTES} bytes")
    return raw.decode("latin-1")


# urllib3's texts name objects by their address; the innermost cause says what happened.
def _reason(error: BaseException) -> str:
    while isinstance(inner := error.__cause__ or getattr(error, "reason", None), BaseException):
        error = inner
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


class _Call(NamedTuple):
    due_s: float
    when: When
    decision: str
    payload: Payload


class _Worker:
    # Counts and `ended` are written by the thread and, of calls that are dropped, by the caller.
    def __init__(self, settings: WebhookHook, hook: Hook, rest_s: float) -> None:
        self.settings = settings
        self.counts: dict[CallOutcome, int] = dict.fromkeys(OUTCOMES, 0)
        self.spent_ns = 0
        self.ended: deque[tuple[str, HookResult]] = deque(maxlen=_REMEMBERED)  # with the decision's id
        self.problem: str | None = None
        self._hook = hook
        self._rest_s = rest_s
        self._failed_in_a_row = 0
        self._is_full = False
        self._queue: Queue[_Call | None] = Queue()  # of at most QUEUED calls, and the end
        supervisor = Supervisor(f"hook-{settings.name}")
        self.thread = supervisor.thread(functools.partial(self._work, supervisor), again=True)
        self.thread.start()

    def put(self, when: When, decision: str, payload: Payload) -> None:
        call = _Call(time.monotonic() + self._rest_s, when, decision, payload)
        is_full = self._queue.qsize() >= QUEUED
        if is_full:
            self._drop(call)
            if not self._is_full:
                _log.warning("hook %s is behind: calls of it are left out", self.settings.name)
        else:
            self._queue.put_nowait(call)
        self._is_full = is_full

    # After what is queued; there is always room for the end.
    def close(self) -> None:
        self._queue.put_nowait(None)

    def drop_queued(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                if (call := self._queue.get_nowait()) is not None:
                    self._drop(call)

    def _drop(self, call: _Call) -> None:
        self.ended.append((call.decision, HookResult(self.settings.name, call.when, "dropped", 0)))
        self.counts["dropped"] += 1

    def _work(self, supervisor: Supervisor) -> None:
        while (call := self._queue.get()) is not None:
            supervisor.call(functools.partial(self._do, call))

    def _do(self, call: _Call) -> None:
        time.sleep(max(0.0, call.due_s - time.monotonic()))
        since_ns = time.monotonic_ns()
        try:
            ran = self._hook.call(call.payload(self.settings.name))
        except Exception as error:
            self._record(Ran("failed", f"internal error: {error}"), call, time.monotonic_ns() - since_ns)
            raise
        self._record(ran, call, time.monotonic_ns() - since_ns)

    def _record(self, ran: Ran, call: _Call, took_ns: int) -> None:
        name, said = self.settings.name, printable(ran.output.strip())
        if said:
            _log.debug("hook %s said: %s", name, said[:_LOGGED_CHARS])
        if ran.ending == "done":
            if self._failed_in_a_row:
                _log.info("hook %s works again, after %d calls that failed", name, self._failed_in_a_row)
            self._failed_in_a_row, self.problem = 0, None
        else:
            self.problem = printable(ran.detail) + (f": {said[:_SHOWN_CHARS]}" if said else "")
            if not self._failed_in_a_row:
                _log.warning("hook %s failed: %s; more of its failures are only counted", name, self.problem)
            self._failed_in_a_row += 1
        self.ended.append((call.decision, HookResult(name, call.when, ran.ending, took_ns, printable(ran.detail))))
        self.spent_ns += took_ns
        self.counts[ran.ending] += 1  # the last: who sees it counted sees what came of it


class EvictionHooks:
    """All hooks of the settings; `open_hooks` makes them.

    Args:
        hooks: each with what calls it.
        close: what they share.
        rest_s: from a call of `call` to that of a hook.
        close_s: how long `close` waits for what is queued.
    """

    def __init__(
        self,
        hooks: Sequence[tuple[WebhookHook, Hook]],
        close: Callable[[], None] = lambda: None,
        *,
        rest_s: float = REST_S,
        close_s: float = CLOSE_S,
    ) -> None:
        self._workers = tuple(_Worker(settings, hook, rest_s) for settings, hook in hooks)
        self._close = close
        self._close_s = close_s

    def wants(self, when: When, *, dry_run: bool) -> bool:
        """Tell whether any hook is called then."""
        return any(self._is_asked(each.settings, when, dry_run) for each in self._workers)

    def call(self, when: When, payload: Payload, *, dry_run: bool, decision: str = "") -> None:
        """Queue a call of each hook that wants it. Does not wait. `decision`: id of the audit record."""
        for each in self._workers:
            if self._is_asked(each.settings, when, dry_run):
                each.put(when, decision, payload)

    def ended(self) -> Mapping[str, Sequence[HookResult]]:
        """Return the last calls that have ended, by the decision's id, each hook's in their order; from any thread."""
        found: dict[str, list[HookResult]] = {}
        for each in self._workers:
            for decision, called in each.ended.copy():
                found.setdefault(decision, []).append(called)
        return found

    def spent_s(self) -> Mapping[str, float]:
        """Return how long the calls of each hook took since the start, by its name; from any thread."""
        return {each.settings.name: each.spent_ns / NS_PER_S for each in self._workers}

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return how many calls ended how since the start, by hook and outcome; from any thread."""
        return {
            (each.settings.name, outcome): number
            for each in self._workers
            for outcome, number in each.counts.copy().items()
        }

    def problem(self) -> str | None:
        """Return which hooks failed when they were called last, and why; None: none did. From any thread."""
        found = [f"{each.settings.name}: {each.problem}" for each in self._workers if each.problem is not None]
        return "; ".join(found) or None

    def close(self) -> None:
        """Call what is queued, for at most `close_s`, then stop."""
        for each in self._workers:
            each.close()
        if not have_ended([each.thread for each in self._workers], self._close_s):
            for each in self._workers:
                each.drop_queued()
                each.close()
            names = ", ".join(each.settings.name for each in self._workers if each.thread.is_alive())
            _log.warning("hooks have not ended: %s; the last calls of them are left out", names)
        self._close()

    @staticmethod
    def _is_asked(settings: WebhookHook, when: When, dry_run: bool) -> bool:
        return when in settings.when and (settings.dry_run or not dry_run)


def open_hooks(settings: EvictionHookSettings) -> EvictionHooks:
    """Start what calls the hooks."""
    wires = OpenConnections()
    wires.start()
    return EvictionHooks([(each, Webhook(each, wires)) for each in settings.webhooks], wires.cut)
