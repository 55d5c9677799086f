"""The live page of `koordebpf top` on a terminal: redrawn in place, and keys as they are pressed.

It has a screen of its own: nothing flickers, and the terminal is as it was afterwards.

Why rich, and not textual: to import it takes 50 ms of CPU and 6 MiB, textual 240 ms and 23 MiB (CPython 3.11).
"""

from __future__ import annotations

import os
import re
import sys
import termios
import tty
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from koordebpf.kernel.io.closing import Closing
from koordebpf.report.top import TopPage, cut
from koordebpf.tools.top.choice import KEY_LINE, REPLAY_KEY_LINE, Choice
from koordebpf.tools.top.page import ALONE, Around, page_lines
from koordebpf.tools.top.table import MOST_WIDTH

# What terminals send for keys that are no character: xterm's ctlseqs, in both modes of the cursor keys.
_NAMES: Final = {
    "[A": "up", "OA": "up", "[B": "down", "OB": "down", "[5~": "page up", "[6~": "page down",
    "[H": "home", "OH": "home", "[1~": "home", "[F": "end", "OF": "end", "[4~": "end",
}  # fmt: skip
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Za-z]|)|.", re.DOTALL)
_CHARACTERS: Final = {"\x1b": "escape", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace"}
_STYLES = {"": "", "bold": "bold", "red": "bold red", "yellow": "yellow", "dim": "dim", "reverse": "reverse"}


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


def can_redraw() -> bool:
    """Tell whether the terminal moves its cursor: on one that does not (TERM=dumb) a screen stays empty."""
    return not Console().is_dumb_terminal


class Screen:
    """The terminal's other screen; what was there before is back afterwards."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, screen=True)

    def show(self, page: TopPage, choice: Choice, most_rows: int | None = None, around: Around = ALONE) -> None:
        """Draw the page over the last one; the keys, or the text that is typed, stand on the last line."""
        width, height = self._console.size
        wide = min(width, MOST_WIDTH)
        lines = page_lines(cut(page, most_rows), choice, height - 1, width=wide, around=around)
        drawn = [Text(line, style=_STYLES[style], no_wrap=True, overflow="crop") for line, style in lines]
        drawn += [Text("")] * (height - 1 - len(drawn))
        last = REPLAY_KEY_LINE if around.replays else KEY_LINE
        if choice.typing:
            last = f"/{choice.filter}▏ Enter keeps it, Esc drops it"
        elif choice.filter:
            last = f"only {choice.filter!r}: Esc drops it   {last}"
        drawn.append(Text(last[:wide], style="reverse", no_wrap=True, overflow="crop"))
        self._live.update(Group(*drawn), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
