"""What `koordebpf doctor` found, as one value, and as a table: what works, how, and what to do about the rest."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal

import msgspec

from koordebpf.kernel.signals import BackendName, SignalSource
from koordebpf.printable import page, printable
from koordebpf.tools.doctor.remedies import SignalFixes, fix_lines

Health = Literal["all", "degraded", "cannot"]
EXIT_CODES: dict[Health, int] = {"all": 0, "degraded": 1, "cannot": 2}
_WIDTH = 80
_SIGNAL = 35
_HINT = 4
_MARKS = {True: "ok", False: "--"}
_SENTENCES: dict[Health, str] = {
    "all": "The agent runs here with every signal.",
    "degraded": "The agent runs here; what is marked or noted costs what it says.",
    "cannot": "The agent cannot run here.",
}


class BackendTry(msgspec.Struct, frozen=True):
    """One backend: taken, or why not."""

    name: BackendName
    taken: bool
    reason: str = ""
    remedy: str = ""
    failed: bool = False  # it was tried


class DoctorReport(msgspec.Struct, frozen=True):
    """What was found on one host. `exit_code`: 0 all, 1 degraded, 2 cannot."""

    schema: Literal["koordebpf.doctor/v1"]
    host: str
    health: Health
    exit_code: int
    backends: tuple[BackendTry, ...]
    sources: tuple[SignalSource, ...]
    fixes: tuple[SignalFixes, ...] = ()
    quality: str = ""  # what the signals of the backend that was taken are worth
    katalyst: tuple[SignalSource, ...] = ()  # Katalyst's eviction manager, where its feature gate is on
    strategies: tuple[SignalSource, ...] = ()  # the parts of QoS strategies and hooks whose feature gates are on
    notes: tuple[SignalSource, ...] = ()  # what else was found on the node; the agent runs with every signal


class AskedSources(msgspec.Struct, frozen=True):
    """What a configuration file asks for beside the signals; as in `DoctorReport`."""

    katalyst: tuple[SignalSource, ...] = ()
    strategies: tuple[SignalSource, ...] = ()


_NONE_ASKED = AskedSources()


def doctor_report(
    host: str,
    backends: Sequence[BackendTry],
    sources: Sequence[SignalSource],
    fixes: Sequence[SignalFixes],
    quality: str = "",
    asked: AskedSources = _NONE_ASKED,
    notes: Sequence[SignalSource] = (),
) -> DoctorReport:
    """Return the report; without a backend that was taken the agent cannot run.

    What Katalyst's plugins and the strategies lack does not degrade it: which of them a node can have is the operator's
    choice. Nor do notes.
    """
    health: Health = "all"
    if not any(each.taken for each in backends):
        health = "cannot"
    elif any(source.reason for source in sources) or any(each.failed for each in backends):
        health = "degraded"
    return DoctorReport(
        "koordebpf.doctor/v1",
        host,
        health,
        EXIT_CODES[health],
        tuple(backends),
        tuple(sources),
        tuple(fixes),
        quality,
        asked.katalyst,
        asked.strategies,
        tuple(notes),
    )


def doctor_text(report: DoctorReport, *, with_fixes: bool = False) -> str:
    """Return the tables: backends, then each signal and below it what it lacks, how to get it and what that costs."""
    lines = [report.host, "", "   BACKEND"]
    for each in report.backends:
        head = f"{'ok' if each.taken else '  '} {each.name:<{_SIGNAL}} "
        lines += _wrapped(head, "is taken" if each.taken else each.reason, _SIGNAL + 4)
        if each.remedy and not each.taken:
            lines += _wrapped(" " * (_SIGNAL + 4), each.remedy, _SIGNAL + 4)
    lines += ["", *_table("SIGNAL", report.sources)]
    if report.katalyst:
        lines += ["", *_table("KATALYST", report.katalyst)]
    if report.strategies:
        lines += ["", *_table("STRATEGY", report.strategies)]
    if report.notes:
        lines += ["", *_table("NOTE", report.notes)]
    if report.quality:
        lines += ["", *_wrapped("", report.quality, 0)]
    missing = sum(not source.works for source in report.sources)
    lines += ["", f"{len(report.sources) - missing} of {len(report.sources)} work here.", _SENTENCES[report.health]]
    if with_fixes:
        lines += ["", "How to fix it", "", *fix_lines(report.fixes, lambda head, text: _wrapped(head, text, _HINT))]
    elif report.fixes:
        lines.append("koordebpf doctor --fix tells what to type.")
    return page(line.rstrip() for line in lines)


def _table(heading: str, sources: Sequence[SignalSource]) -> list[str]:
    lines = [f"   {heading:<{_SIGNAL}} HOW"]
    shown = ("", "")
    for source in sources:
        lines += _wrapped(
            f"{_MARKS[source.works]} {source.signal:<{_SIGNAL}} ", source.how or source.reason, _SIGNAL + 4
        )
        if source.reason:
            # One cause may take many signals: it is explained at the first of them.
            is_same, shown = shown == (source.reason, source.remedy), (source.reason, source.remedy)
            why = ("the same",) if is_same else (source.reason if source.how else "", source.remedy)
            notes = (*why, source.cost and f"costs: {source.cost}")
            lines += [line for note in notes if note for line in _wrapped(" " * (_SIGNAL + 4), note, _SIGNAL + 4)]
    return lines


def _wrapped(head: str, text: str, indent: int) -> list[str]:
    return textwrap.wrap(head + printable(text), _WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)
