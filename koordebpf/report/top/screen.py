"""The live page of `koordebpf top` on a terminal: redrawn in place, on a screen of its own: nothing flickers."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from koordebpf.report.top.page import KEY_LINE, Choice, TopPage, cut, page_lines

_STYLES = {"": "", "bold": "bold", "red": "bold red", "dim": "dim"}


def can_redraw() -> bool:
    """Tell whether the terminal moves its cursor: on one that does not (TERM=dumb) a screen stays empty."""
    return not Console().is_dumb_terminal


class Screen:
    """The terminal's other screen; what was there before is back afterwards."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, screen=True)

    def show(self, page: TopPage, choice: Choice, most_rows: int | None = None) -> None:
        """Draw the page over the last one; the keys stand on the last line."""
        height = self._console.size.height
        lines = page_lines(cut(page, most_rows), choice, height - 1)
        drawn = [Text(line, style=_STYLES[style], no_wrap=True, overflow="crop") for line, style in lines]
        drawn += [Text("")] * (height - 1 - len(drawn))
        drawn.append(Text(KEY_LINE, style="reverse", no_wrap=True, overflow="crop"))
        self._live.update(Group(*drawn), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
