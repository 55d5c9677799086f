"""Keys as they are pressed, without the line that a terminal waits for; the terminal is as it was afterwards."""

from __future__ import annotations

import os
import re
import sys
import termios
import tty
from typing import Final

from koordebpf.kernel.io.closing import Closing

# What terminals send for keys that are no character: xterm's ctlseqs, in both modes of the cursor keys.
_NAMES: Final = {
    "[A": "up", "OA": "up", "[B": "down", "OB": "down", "[5~": "page up", "[6~": "page down",
    "[H": "home", "OH": "home", "[1~": "home", "[F": "end", "OF": "end", "[4~": "end",
}  # fmt: skip
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Za-z]|)|.", re.DOTALL)
_CHARACTERS: Final = {"\x1b": "escape", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace"}


def keys_of(text: str) -> list[str]:
    """Return the keys that a terminal has sent, those without a character by their names; unknown ones are left out.

    >>> keys_of("a\\x1b[Bq\\x1b")
    ['a', 'down', 'q', 'escape']
    """
    found = []
    for sent in _SEQUENCE.findall(text):
        if sent.startswith("\x1b") and len(sent) > 1:
            if name := _NAMES.get(sent[1:]):
                found.append(name)
        else:
            found.append(_CHARACTERS.get(sent, sent))
    return found


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

    def read(self) -> list[str]:
        """Return the keys that were pressed. Call it when the fd is readable: it would wait."""
        sent = os.read(self._fd, 64).decode(errors="replace")
        return keys_of(sent) if sent else ["\x04"]  # the terminal is gone

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
