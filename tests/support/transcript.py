"""What stays the same from one `koordebpf demo` to the next: its lines without moments, sizes, durations and bars."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "demo.md"

_ROW = re.compile(r" +\d+\.\d\d  (.*)")  # second, what
_MORE = re.compile(r" {10,}(\S.*)")  # of the agent's sentence above
_SENTENCE = "koordebpf: "
_QUANTITY = re.compile(r"[+-]?\b\d+(\.\d+)?( (%|ns|µs|ms|s|KiB|MiB|GiB)(?=\W|$))?")


class Transcript(NamedTuple):
    """What one demo printed.

    `head`: up to its first row, as it is. `sentences`: the agent's, in one line each, and `frame`: all other lines but
    the node's usage; both without quantities and without the width of columns.
    """

    head: str
    sentences: tuple[str, ...]
    frame: tuple[str, ...]


def transcript(text: str) -> Transcript:
    """Take what a demo printed apart."""
    lines = text.splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if _ROW.match(line))
    sentences: list[str] = []
    frame: list[str] = []
    is_sentence = False
    for line in lines[first:]:
        more, row = _MORE.match(line), _ROW.match(line)
        if is_sentence and more:
            sentences[-1] += f" {more[1]}"
            continue
        is_sentence = row is not None and row[1].startswith(_SENTENCE)
        if row is not None and is_sentence:
            sentences.append(row[1])
        elif row is None or not row[1].startswith("["):
            frame.append(row[1] if row else line)
    return Transcript("".join(lines[:first]), tuple(map(_shape, sentences)), tuple(map(_shape, frame)))


def of_demo_page() -> tuple[str, Transcript]:
    """Return the sentence of docs/demo.md that says on which machine it was recorded, and its transcript."""
    ((machine, text),) = re.findall(r"\n([^\n]*)\n\n```text\n(koordebpf demo: .*?)```", PAGE.read_text(), re.DOTALL)
    return machine, transcript(text)


def _shape(line: str) -> str:
    return " ".join(_QUANTITY.sub("N", line).split())
