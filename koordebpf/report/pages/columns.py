"""Rows of text under headings, at most 80 columns wide, and what an eviction releases, in such a row."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from koordebpf.policy.credit import candidate_credit
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.plan import Candidate
from koordebpf.printable import printable
from koordebpf.state.amount import MEMORY, unit_of
from koordebpf.units import format_bytes

WIDTH = 80
_GAP = 2


def released_text(candidate: Candidate, verdict: Verdict) -> str:
    """Return what the eviction of a candidate releases of what is short, for people."""
    if verdict.is_by_name:
        return format_bytes(candidate.of(MEMORY).released)
    texts = []
    for dimension in verdict.amounts:
        amount = candidate_credit(candidate, dimension)
        text = unit_of(dimension.resource).format(amount)
        if dimension.is_use:
            texts.append(text)
        elif amount:
            texts.append(f"{text} of {dimension.asked or dimension.name}")
    return " and ".join(texts) or "nothing of what is short"


def table_lines(heading: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Return a line for the heading and each row; numbers stand to the right, the column `left` to the left.

    That column is the one that gives way where a line would be too long: its texts are cut in their middle.
    """
    everything = [heading, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in everything) for column in range(len(heading))]
    others = sum(widths) - widths[left] + _GAP * (len(widths) - 1)
    widths[left] = max(min(widths[left], WIDTH - others), 3)
    lines = []
    for row in everything:
        cells = [
            cut_middle(cell, widths[left]).ljust(widths[left]) if column == left else cell.rjust(widths[column])
            for column, cell in enumerate(row)
        ]
        lines.append((" " * _GAP).join(cells).rstrip())
    return lines


def cut_middle(text: str, width: int) -> str:
    """Return the text, no longer than `width`: the end of a pod's name tells it from its siblings.

    >>> cut_middle("spark/executor-17", 10)
    'spar…or-17'
    """
    return text if len(text) <= width else f"{text[: width // 2 - 1]}…{text[-(width - width // 2) :]}"


def filled(text: str, indent: str = "") -> list[str]:
    """Return the lines of a text that may be longer than one; those after the first stand two further in."""
    return textwrap.wrap(
        printable(text), WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
    )  # fmt: skip


class _PathWrapper(textwrap.TextWrapper):
    # A path that is longer than a line is broken behind a slash.
    wordsep_simple_re = re.compile(r"([ ]+|(?<=/)(?=[^ ]))")


def filled_paths(text: str, indent: str = "") -> list[str]:
    """Return the lines of a text as `filled`, which may end behind a slash, too.

    >>> filled_paths("kubepods.slice/kubepods-besteffort.slice/" + "x" * 60 + " → 5")[0]
    'kubepods.slice/kubepods-besteffort.slice/'
    """
    return _PathWrapper(WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False).wrap(
        printable(text)
    )
