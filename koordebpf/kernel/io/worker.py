"""Threads that outlive an unexpected error: it harms what was being done, and is said, counted and shown.

A Python thread ends with such an error, and its work stops without a word.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import select
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from queue import Empty, Full, Queue
from typing import Generic, TypeVar

from koordebpf.kernel.io.closing import Closing

log = logging.getLogger(__name__)
_REST_S = 1.0  # Why: what fails without waiting for anything must not take a CPU
_LOG_APART_S = 60.0  # Why: what fails with each second request of a client must not fill the log
J = TypeVar("J")
_lock = threading.Lock()  # threads come while others are listed
_errors: Counter[str] = Counter()


class Stopped(Exception):
    """`close` was called."""


class StoppableThread(Closing):
    """Calls `run` in a thread from `start` until it returns or `close` is called.

    Args:
        name: of the thread.
        run: calls `wait` wherever it waits, and lets `Stopped` pass.
        begin: run first in that thread.
    """

    def __init__(self, name: str, run: Callable[[], object], begin: Callable[[], object] | None = None) -> None:
        self._run = run
        self._begin = begin
        self._stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = Supervisor(name).thread(self._work, again=True)

    def start(self) -> None:
        """Start the thread: what `run` uses is there."""
        self._thread.start()

    def wait(self, until_ns: int | None, fd: int | None = None, events: int = select.POLLIN) -> bool:
        """Wait until `fd` is ready; return False where it was not until then (CLOCK_MONOTONIC; None: no deadline).

        Raises:  Stopped: `close` was called.
        """
        poll = select.poll()
        poll.register(self._stop_fd, select.POLLIN)
        if fd is not None:
            poll.register(fd, events)
        left_ms = None if until_ns is None else max(0, until_ns - time.monotonic_ns()) / 1e6
        ready = poll.poll(left_ms)
        if any(each == self._stop_fd for each, _ in ready):
            raise Stopped
        return bool(ready)

    def close(self) -> None:
        """Stop the thread, where it was started, and wait for its end; twice is harmless."""
        if self._stop_fd < 0:
            return
        os.eventfd_write(self._stop_fd, 1)
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._stop_fd)
        self._stop_fd = -1

    def _work(self) -> None:
        if self._begin is not None:
            self._begin()
        with contextlib.suppress(Stopped):
            self._run()


class Supervisor:
    """Keeps one thread of this process alive. `failures` counts unexpected errors.

    `problem`: the last of them; None: what was done after it ended without one.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures = 0
        self.problem: str | None = None
        self._logged_s = -_LOG_APART_S  # as of when …
        self._is_logged = False  # … the log has that it fails
        with _lock:
            _supervisors.add(self)

    def call(self, work: Callable[[], object]) -> bool:
        """Do something; tell whether it ended without an unexpected error."""
        try:
            work()
        except Exception as error:
            self.failed(error)
            return False
        self.worked()
        return True

    def failed(self, error: Exception) -> None:
        """Count and show an unexpected error that was caught, and log the first of several."""
        self.failures += 1
        with _lock:
            _errors[self.name.partition(" ")[0]] += 1
        now_s = time.monotonic()
        if self.problem is None and now_s - self._logged_s >= _LOG_APART_S:
            text = "thread %s: an unexpected error; it continues, more of them are only counted"
            log.error(text, self.name, exc_info=error)
            self._logged_s, self._is_logged = now_s, True
        self.problem = f"{type(error).__name__}: {error}"

    def worked(self) -> None:
        """Show no error any more: something was done without one."""
        if self.problem is not None and self._is_logged:
            log.info("thread %s works again, after %d unexpected errors", self.name, self.failures)
            self._is_logged = False
        self.problem = None

    def keep(self, run: Callable[[], object]) -> None:
        """Run something until it returns; after an unexpected error once more."""
        while not self.call(run):
            time.sleep(_REST_S)

    def thread(self, run: Callable[[], object], *, again: bool = False) -> threading.Thread:
        """Return a daemon thread of this name that runs it, with `again` as `keep` does; it is not started."""
        return threading.Thread(target=self.keep if again else self.call, args=(run,), name=self.name[:15], daemon=True)


_supervisors: weakref.WeakSet[Supervisor] = weakref.WeakSet()


def supervisors() -> list[Supervisor]:
    """Return those of this process, by name."""
    with _lock:
        found = list(_supervisors)
    return sorted(found, key=lambda each: each.name)


def thread_problems() -> dict[str, str]:
    """Return the last unexpected error of each thread that has not worked since, by name."""
    return {each.name: each.problem for each in supervisors() if each.problem is not None}


def thread_errors() -> dict[str, int]:
    """Return how many unexpected errors there were since the start, by the first word of a thread's name."""
    with _lock:
        return _errors.copy()


class Worker(Generic[J]):
    """One thread that does jobs in order. An unexpected error harms its own job alone.

    Args:
        name: of the thread.
        work: is given each job.
        most: jobs that wait; one more is dropped, and counted in `dropped`.
        begin: is called first in the thread, which works without it where it fails.
    """

    def __init__(
        self, name: str, work: Callable[[J], object], *, most: int, begin: Callable[[], object] | None = None
    ) -> None:
        self._work = work
        self._begin = begin
        self._jobs: Queue[tuple[J] | None] = Queue(most)
        self.supervisor = Supervisor(name)
        self.dropped = 0  # jobs that found no place
        # Started now: under pressure a new thread's stack is one more allocation that may stall.
        self.thread = self.supervisor.thread(self._run, again=True)
        self.thread.start()

    def submit(self, job: J) -> bool:
        """Put it behind those that wait; tell whether there was a place. Does not wait."""
        try:
            self._jobs.put_nowait((job,))
        except Full:
            self.dropped += 1
            return False
        return True

    def end(self) -> None:
        """Let the thread end after what waits, without waiting for it; where that is too much, without some of it."""
        while True:
            try:
                self._jobs.put_nowait(None)
                return
            except Full:
                self._drop_one()

    def close(self, timeout_s: float | None = None) -> bool:
        """End the thread, and wait for at most so long; tell whether it ended."""
        self.end()
        self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def _drop_one(self) -> None:
        try:
            self._jobs.get_nowait()
        except Empty:
            return
        self.dropped += 1

    def _run(self) -> None:
        if self._begin is not None:
            self.supervisor.call(self._begin)
        while (given := self._jobs.get()) is not None:
            (job,) = given
            self.supervisor.call(functools.partial(self._work, job))
