"""deploy/README.md as its reader has it: the commands of each section, and what it says that they print."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

README = Path(__file__).parents[2] / "deploy" / "README.md"
OMITTED = "..."
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What differs from one cluster, or one second, to the next. A table's columns are as wide as what is in them.
_VARYING = (
    (re.compile(r"\s+"), " "),
    (re.compile(r"\bkoordebpf-(agent(?:-enforce)?|controller-[0-9a-f]+)-[a-z0-9]{5}\b"), r"koordebpf-\1-?"),
    (re.compile(r"\b(koordebpf-controller)-[0-9a-f]{8,10}\b"), r"\1-?"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,\d]*Z?"), "TIME"),
    # Not 1/1, which is not 0/1.
    (re.compile(r"(?<![\w./])~?(?:\d+(?:\.\d+)?(?: ?(?:[KMG]iB|B|µs|ms|s|m|h)(?:/s)?(?![A-Za-z]))?)+(?![\w/])"), "#"),
    (re.compile(r"(?<!\S)-(?!\S)"), "#"),  # not known yet
)


def commands(heading: str) -> list[str]:
    """Return what is typed in a section, in its order, without comments."""
    typed = [line for kind, block in _blocks(heading) if kind == "sh" for line in block.splitlines()]
    return [line.partition(" #")[0].rstrip() for line in typed]


def transcripts(heading: str) -> dict[str, list[str]]:
    """Return the lines that a section shows for each command: what stands below `$ COMMAND`."""
    shown: dict[str, list[str]] = {}
    for kind, block in _blocks(heading):
        if kind == "text":
            for line in block.splitlines():
                if line.startswith("$ "):
                    lines = shown.setdefault(line.removeprefix("$ "), [])
                else:
                    lines.append(line)
    return shown


def section(heading: str) -> str:
    """Return the text of a section."""
    parts = _SECTION.split(README.read_text())
    return dict(zip(parts[1::2], parts[2::2], strict=True))[heading]


def _blocks(heading: str) -> list[tuple[str, str]]:
    return _BLOCK.findall(section(heading))


def shape(text: str) -> str:
    """Return a text without what differs each time: numbers with their units, the ends of pods' names, widths."""
    for pattern, kept in _VARYING:
        text = pattern.sub(kept, text)
    return text.strip()


def is_like(printed: str, shown: Sequence[str]) -> bool:
    """Tell whether what was printed is what is shown, number for number another one.

    Lines are compared paragraph by paragraph, since another number may break one elsewhere; `...` is any text.
    """
    parts = [re.escape(shape(part)) for part in "\n".join(["", *shown, ""]).split(f"\n{OMITTED}\n")]
    return re.fullmatch(".*".join(parts), shape(printed)) is not None
