"""A bounded queue of lines in front of a pipe or file that may not take them, with a thread that writes.

The thread that decides, kills and thaws must never wait for a reader, a disk or a network: a container runtime that is
being updated reads no pipe, a full or hung disk takes no file, and both are what a node short of memory looks like.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from koordebpf.errors import os_reason
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.units import MIB

MAX_LINES = 4_000  # Why: 440 files of suppression written nine times over, or minutes of a busy log
_MAX_BYTES = 4 * MIB  # Why: 200 decisions of 20 kB; more is not worth the memory of an agent that is locked into it
RETRY_S = 1.0  # Why: a disk that was full a moment ago is full
STUCK_S = 1.0  # Why: a reader that is merely slow takes a line within milliseconds


class LineSink:
    """Lines wait here in order. What does not fit pushes the oldest out, which is counted in `dropped`.

    Without `start`, `put` writes the line itself. After it one thread writes, and `put` never waits. That
    thread may hang in write(2) or open(2) for ever: `close` leaves it behind, and the process ends nevertheless.

    Args:
        write: delivers one line, or raises OSError; it is tried again then, so that none is written twice or in part.
        name: of the thread, and of what is written, as "audit".
        max_lines: that wait, at most.
        recovered: called with the number of lines that were dropped, once nothing waits any more.
        retry_s: until a line that was refused is tried again.
        stuck_s: a line that takes longer to write is a `problem`.
    Cost:    `put` 3 µs.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        name: str,
        *,
        max_lines: int = MAX_LINES,
        recovered: Callable[[int], None] | None = None,
        retry_s: float = RETRY_S,
        stuck_s: float = STUCK_S,
    ) -> None:
        self._write = write
        self._name = name
        self._max_lines = max_lines
        self._recovered = recovered
        self._retry_s = retry_s
        self._stuck_s = stuck_s
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._taken: bytes | None = None  # the line that is being written
        self._writing_since_s: float | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._reported = 0  # of the dropped: reported already
        self._is_failing = False
        self.written = 0
        self.dropped = 0
        self.last_error: str | None = None

    @property
    def waiting(self) -> int:
        """How many lines are not written yet."""
        with self._changed:
            return len(self._lines) + (self._taken is not None)

    @property
    def problem(self) -> str | None:
        """Why lines wait; None: nothing is in their way."""
        since_s = self._writing_since_s
        if since_s is not None and (stuck_s := time.monotonic() - since_s) > self._stuck_s:
            return f"a line has been on its way for {stuck_s:.0f} s"
        return self.last_error if self._is_failing else None

    def start(self) -> None:
        """Let a thread write from now on."""
        # A daemon: the interpreter must not wait for a thread that hangs in the kernel.
        self._thread = Supervisor(f"{self._name}-writer").thread(self._work, again=True)
        self._thread.start()

    def put(self, line: bytes) -> bool:
        """Add one line; tell whether nothing is in the way of those that wait."""
        with self._changed:
            self._lines.append(line)
            self._bytes += len(line)
            while len(self._lines) > self._max_lines or (self._bytes > _MAX_BYTES and len(self._lines) > 1):
                self._bytes -= len(self._lines.popleft())
                self.dropped += 1
            self._changed.notify_all()
        return self.catch_up()

    def catch_up(self) -> bool:
        """Have what waits written; tell whether nothing is in its way."""
        if self._thread is None:
            return self._write_all()
        return self.problem is None

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing waits, but not for longer than this; tell whether nothing does."""
        if self._thread is None:
            return self._write_all()
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines and self._taken is None, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write what waits, but for no longer than this; tell whether all is written. Twice is harmless."""
        is_written = self.flush(timeout_s)
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        return is_written

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._is_closing)
                if self._is_closing:
                    return
            if not self._write_all():
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closing, self._retry_s)

    def _write_all(self) -> bool:
        while True:
            with self._changed:
                if not self._lines:
                    break
                line = self._taken = self._lines.popleft()
                self._bytes -= len(line)
                self._writing_since_s = time.monotonic()
            try:
                self._write(line)
            except OSError as error:
                self.last_error, self._is_failing = os_reason(error), True
                with self._changed:
                    self._put_back(line)
                return False
            except Exception:  # the line itself may be why: it is not tried again
                with self._changed:
                    self._taken, self._writing_since_s = None, None
                    self.dropped += 1
                    self._changed.notify_all()
                raise
            with self._changed:
                self.written += 1
                self._taken, self._writing_since_s, self._is_failing = None, None, False
                self._changed.notify_all()
        if self._recovered and (lost := self.dropped - self._reported):
            self._reported += lost
            self._recovered(lost)
        return True

    # The oldest of all: where others have come meanwhile and there is no room for it, it is dropped.
    def _put_back(self, line: bytes) -> None:
        self._taken, self._writing_since_s = None, None
        if len(self._lines) >= self._max_lines:
            self.dropped += 1
            return
        self._lines.appendleft(line)
        self._bytes += len(line)


def write_whole(fd: int, line: bytes | memoryview) -> None:
    """Write all of it to a pipe or terminal, also to one that another process has made non-blocking.

    Not through sys.stdout: what its buffer could not write it would write again.

    Raises:  OSError: it was not written; how much of it was is unknown.
    """
    left = memoryview(line)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            waiting = select.poll()
            waiting.register(fd, select.POLLOUT)
            waiting.poll()
