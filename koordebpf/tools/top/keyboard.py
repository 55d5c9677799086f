"""Keys as they are pressed, without the line that a terminal waits for; the terminal is as it was afterwards."""

from __future__ import annotations

import os
import sys
import termios
import tty

from koordebpf.kernel.io.closing import Closing


class Keyboard(Closing):
    """Standard input, where it is a terminal; else no keys.

    A process in the background must not touch its terminal: it would be stopped for it (SIGTTOU).
    """

    def __init__(self) -> None:
        self._fd = -1
        fd = sys.stdin.fileno() if sys.stdin is not None and not sys.stdin.closed else -1
        if fd >= 0 and os.isatty(fd) and _is_in_front(fd):
            self._fd = fd
            self._before = termios.tcgetattr(fd)
            tty.setcbreak(fd)

    def fileno(self) -> int | None:
        """Return the fd that is readable when a key was pressed; None: there are no keys."""
        return self._fd if self._fd >= 0 else None

    def read(self) -> str:
        """Return the keys that were pressed. Call it when the fd is readable: it would wait."""
        keys = os.read(self._fd, 64).decode(errors="replace")
        return keys or "q"  # the terminal is gone

    def close(self) -> None:
        """Give the terminal back as it was; twice is harmless."""
        if self._fd >= 0:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
            self._fd = -1


def _is_in_front(fd: int) -> bool:
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:  # ENOTTY: the terminal of another session, as after setsid
        return False
