"""The event loop's wait: epoll over everything that can wake the agent.

asyncio is not used: its `add_reader` spins on a PSI trigger (which is always EPOLLIN-ready), and a nested epoll loses
which trigger fired (both measured).
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from types import FrameType

from koordebpf.kernel.io.closing import Closing
from koordebpf.units import NS_PER_S


class _Timer:
    # What is called from within a wait, and when again.
    def __init__(self, call: Callable[[int], int]) -> None:
        self.call = call
        self.at_ns = 0


class Loop(Closing):
    """Waits for watched fds, for `wake()` from any thread, for SIGTERM and SIGINT, or for a deadline."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._events: dict[int, int] = {}  # fd → what is waited for
        self._rests_ns: dict[int, int] = {}  # fd → how long it rests each time
        self._resting: dict[int, int] = {}  # fd → until when
        self._timers: list[_Timer] = []
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._handlers: dict[int, object] = {}
        self.stopping = False

    def watch(self, fd: int, callback: Callable[[], None], *, priority: bool = False, rest_ns: int = 0) -> None:
        """Call `callback` from `wait` when `fd` is ready; `priority` waits for EPOLLPRI only, as PSI triggers need.

        Each time it was ready it is not looked at for `rest_ns`: what comes a thousand times a second is then taken in
        batches, and the first after a silence still at once.
        """
        events = select.EPOLLPRI if priority else select.EPOLLIN
        self._epoll.register(fd, events)
        self._callbacks[fd], self._events[fd] = callback, events
        if rest_ns:
            self._rests_ns[fd] = rest_ns

    def rest(self, fd: int, until_ns: int) -> None:
        """Do not look at a watched `fd` until then (CLOCK_MONOTONIC); what it becomes ready for is seen afterwards."""
        if fd in self._callbacks:
            self._epoll.modify(fd, 0)
            self._resting[fd] = until_ns

    def set_timer(self, callback: Callable[[int], int]) -> None:
        """Call `callback` with the time from within `wait`, at once and whenever the time comes that it returned last.

        Unlike an event it does not end the wait: one that found something calls `wake`. CLOCK_MONOTONIC nanoseconds.
        """
        self._timers.append(_Timer(callback))

    def stop_timer(self, callback: Callable[[int], int]) -> None:
        """Call `callback` no more."""
        self._timers = [each for each in self._timers if each.call != callback]

    def unwatch(self, fd: int) -> None:
        """Forget `fd`; one that is closed already is forgotten too."""
        self._callbacks.pop(fd, None)
        self._events.pop(fd, None)
        self._rests_ns.pop(fd, None)
        self._resting.pop(fd, None)
        try:
            self._epoll.unregister(fd)
        except (OSError, ValueError):
            return

    def wake(self) -> None:
        """Let `wait` return now. From any thread and from signal handlers; nothing happens after `close`."""
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def stop(self) -> None:
        """Let the loop's owner finish: `stopping` is set and `wait` returns."""
        self.stopping = True
        self.wake()

    def stop_on_signals(self) -> None:
        """Let SIGTERM and SIGINT stop the loop; `close` restores what was there."""

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            self.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            self._handlers[number] = signal.signal(number, on_signal)

    def wait(self, until_ns: int) -> bool:
        """Wait until `until_ns` (CLOCK_MONOTONIC) or an event, run the callbacks; return whether something woke it.

        The deadline has epoll's resolution of one millisecond and is never early.
        """
        while True:
            now_ns = time.monotonic_ns()
            self._end_rests(now_ns)
            self._run_timers(now_ns)
            next_ns = min((until_ns, *self._resting.values(), *(each.at_ns for each in self._timers)))
            ready = self._epoll.poll(max(0, next_ns - now_ns) / NS_PER_S)
            if ready or next_ns == until_ns:
                break
        for fd, events in ready:
            if fd == self._wake_fd:
                os.eventfd_read(fd)
            elif callback := self._callbacks.get(fd):
                if events & select.EPOLLERR:
                    self.unwatch(fd)  # the cgroup of a PSI trigger is gone: it would be ready for ever
                elif rest_ns := self._rests_ns.get(fd):
                    self.rest(fd, time.monotonic_ns() + rest_ns)
                callback()
        return bool(ready)

    def _run_timers(self, now_ns: int) -> None:
        for each in self._timers:
            if now_ns >= each.at_ns:
                each.at_ns = each.call(now_ns)

    def _end_rests(self, now_ns: int) -> None:
        for fd in [fd for fd, end_ns in self._resting.items() if end_ns <= now_ns]:
            del self._resting[fd]
            self._epoll.modify(fd, self._events[fd])

    def close(self) -> None:
        """Give signals and fds back."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned
        self._handlers.clear()
        if not self._epoll.closed:
            self._epoll.close()
            fd, self._wake_fd = self._wake_fd, -1
            os.close(fd)
