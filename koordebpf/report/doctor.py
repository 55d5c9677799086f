"""The table of `koordebpf doctor`: what works, how, and what to do about the rest. 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from koordebpf.kernel.signals import SignalSource

_WIDTH = 80
_SIGNAL = 32
_MARKS = {True: "ok", False: "--"}


def doctor_text(host: str, sources: Sequence[SignalSource]) -> str:
    """Return the table: a row for each signal, and below a row what it lacks, how to get it and what that costs."""
    lines = [host, "", f"   {'SIGNAL':<{_SIGNAL}} HOW"]
    for source in sources:
        mark = _MARKS[source.works]
        lines += _wrapped(f"{mark} {source.signal:<{_SIGNAL}} ", source.how or source.reason)
        notes = ((source.reason if source.how else ""), source.remedy, source.cost and f"costs: {source.cost}")
        if source.reason:
            lines += [line for note in notes if note for line in _wrapped(" " * (_SIGNAL + 6), note)]
    missing = sum(not source.works for source in sources)
    lines += ["", f"{len(sources) - missing} of {len(sources)} work here."]
    return "\n".join(lines)


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(head + text, _WIDTH, subsequent_indent=" " * (_SIGNAL + 6), break_on_hyphens=False)
