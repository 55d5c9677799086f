"""Calls hooks from a thread each: what calls `call` waits for none of them, and none for another."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, Queue
from typing import NamedTuple

from koordebpf.act.eviction_hooks.ran import OUTCOMES, CallOutcome, Hook, Ran
from koordebpf.act.eviction_hooks.settings import EvictionHookSettings, WebhookHook, When
from koordebpf.act.eviction_hooks.webhook import Webhook
from koordebpf.kernel.io.ending import have_ended
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kube.http.deadlines import OpenConnections
from koordebpf.printable import printable
from koordebpf.state.outcome import HookResult
from koordebpf.units import NS_PER_S

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
            self._note(Ran("failed", f"internal error: {error}"), call, time.monotonic_ns() - since_ns)
            raise
        self._note(ran, call, time.monotonic_ns() - since_ns)

    def _note(self, ran: Ran, call: _Call, took_ns: int) -> None:
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
