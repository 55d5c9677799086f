"""What tenants name reaches no terminal and no text log as it is: the escape, and every text renderer, fuzzed."""

from __future__ import annotations

import io
import logging
import random
import re
import sys
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.attribution.owner import Owner
from koordebpf.cli.echo import echo, echo_json
from koordebpf.demo.output import Event
from koordebpf.demo.screen import Screen as DemoScreen
from koordebpf.events.records import CgroupMkdir, OomKill
from koordebpf.kernel.signals import SignalQuality, SignalSource
from koordebpf.printable import json_bytes, page, printable, printable_text
from koordebpf.report.events import eviction_event
from koordebpf.report.log_formats import JsonFormatter, TextFormatter
from koordebpf.report.pages.explain import explained, explained_writes
from koordebpf.report.pages.plan import plan_page
from koordebpf.report.pages.plan_diff import diff_page, plan_diff
from koordebpf.report.record_line import Seen
from koordebpf.report.top import TopPage, TopRow
from koordebpf.state.measured import LedgerRow, LedgerView, NodeMeasure, Party
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.audit_record import AuditRecord, OpenPlan
from koordebpf.store.write_log import audited_write
from koordebpf.tools.doctor.page import BackendTry, DoctorReport, doctor_text
from koordebpf.tools.doctor.remedies import SignalFixes
from koordebpf.tools.top.choice import Choice
from koordebpf.tools.top.page import page_lines
from koordebpf.tools.top.screen import Screen
from koordebpf.tools.trace.output import render_json, render_text
from koordebpf.tools.trace.summary import CauseSum, PodStalls, Summary
from tests.support.values.builders import frame, node_plan_of, plan_of, pod

ROUNDS = 1000  # for each renderer
HOSTILE = (
    "\x1b]0;pwn\x07", "\x1b[2J", "\x1b[31m", "\r", "\n", "\b\b\b", "\t", "\x00", "\x7f", "\x9b2J", "\x85", "\u202e",
    "\u2066", "\u200e", "\u061c", "\u2028", "\u2029", "\udc80", "\ud800", "\U000e0041", "\ufeff", "[red]", "[/red]",
    "[link=x]", "\\", "'", '"', "web", "be-7", "名前", "é", " ", "\u00a0", "\uffff", "%s", "{0}",
)  # fmt: skip
WALL = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def hostile(chance: random.Random) -> str:
    parts = [chance.choice(HOSTILE) for _ in range(chance.randrange(1, 9))]
    parts += [chr(chance.randrange(0x300)), chr(chance.randrange(0x110000))]
    chance.shuffle(parts)
    return "".join(parts)


def poisoned(value: Any, text: Callable[[], str]) -> Any:
    """Return the value with every field that is free text replaced, at any depth."""
    if isinstance(value, msgspec.Struct):
        changes = {}
        for field in msgspec.structs.fields(value):
            held = getattr(value, field.name)
            if field.type in (str, str | None) and field.name not in ("feature", "resource", "time", "cause", "event"):
                changes[field.name] = text()
            elif isinstance(held, msgspec.Struct | tuple):
                changes[field.name] = poisoned(held, text)
        return msgspec.structs.replace(value, **changes)
    if isinstance(value, tuple):
        return tuple(poisoned(each, text) for each in value)
    return value


def is_shown_only(text: str) -> bool:
    return all(char == "\n" or char.isprintable() or unicodedata.category(char) == "Zs" for char in text)


RECORDED = frame([pod("hog", anon=300), pod("calm", anon=10), pod("left", anon=9, policy="[]")], used=900)
OWNER = Owner(7, "container", "/x", "uid", True, "ns", "web", "c" * 64, "main", "BestEffort", None)  # type: ignore[arg-type]
PARTY = Party("u", "pod", "ns/web", "main", "u")
LEDGER = LedgerView(10**9, 10**9, 0, (LedgerRow(PARTY, PARTY, 10**9, 0, 10**9),))
SUMS = (PodStalls("ns/web", 5, (CauseSum("limit", 1, 5, 5, (1,)),)),)
STALLS = Summary("2026-01-02T03:04:05", 1.0, 5, SUMS, LEDGER, ("lost",))
CHANGE = FileChange("/be/pod/cpu.max", "1", "2", WriteResult.REFUSED, "why", 1, "EROFS")
LINES = (
    Outcome("uid-spark-hog", "spark", "hog", "api", Result.FAILED, "refused", 5),
    Outcome("uid-spark-hog", "spark", "hog", "api", Result.DONE, "gone", 5),
)


def audit_record() -> AuditRecord:
    line = OpenPlan(plan_of(RECORDED), node="n1", dry_run=False, seen_ns=1, decided_ns=2, wall_s=0.0)
    line.add_outcome(LINES[1])
    return line.record()


def top_page() -> TopPage:
    row = TopRow("ns/web", "BE", 1, 7, 1, 1, 1, None, 1.0, 0, 0, None, None)
    measure = NodeMeasure(scope="machine", total_bytes=1 << 30, used_bytes=1 << 29)
    quality = SignalQuality("co-re", "timed", "traced", "one pass", "backend co-re: each stall is timed")
    return TopPage("koordebpf.top/v1", "t", "pod", "usage", 1 << 30, None, measure, None, quality, (row,), LEDGER)


def rich_screen(top: TopPage) -> str:
    # Its own sequences begin with ESC [: what is left between them is ours.
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, width=80, height=24, highlight=False, legacy_windows=False, _environ={}
    )
    with Screen(console) as screen:
        screen.show(top, Choice())
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", out.getvalue())


def demo(event: Event) -> str:
    out = io.StringIO()
    DemoScreen(out).tell(event)
    return out.getvalue()


def log_text(formatter: logging.Formatter, text: str) -> str:
    try:
        raise ValueError(text)
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "x", 1, "the tick ended: %s", (text,), sys.exc_info())
    return formatter.format(record)


def echoed(text: str) -> str:
    return CliRunner().invoke(click.command(lambda: echo(text))).output


def top_lines(top: TopPage) -> str:
    ledger = page_lines(top, Choice(ledger=True))
    return page(line for line, _ in (*page_lines(top, Choice()), *ledger))


DOCTOR = DoctorReport(
    "koordebpf.doctor/v1", "host", "degraded", 1, (BackendTry("co-re", False, "why", "do"),),
    (SignalSource("reclaim", "", False, "why", "do", "cost"),), (SignalFixes("reclaim", "why", (), "sentence"),),
    "quality",
)  # fmt: skip
OOM = OomKill(1, 7, 7, 1, 1, 1, 1, 9, False, "comm")
MKDIR = CgroupMkdir(1, 7, 6, 3, "name", False)
EVICTED = Event(
    1, "evicted", "evicting: x", "hog",
    {"crossed_ns": 1, "seen_ns": 2, "decided_ns": 3, "sent_ns": 4, "freed_ns": 5, "credit_bytes": 6, "ranking": []},
)  # fmt: skip
PLAN = node_plan_of(RECORDED)
VICTIM = PLAN.victims[0]
RENDERERS: dict[str, tuple[Any, Callable[[Any], str]]] = {
    "trace": (Seen(OOM, OWNER, WALL), lambda seen: render_text([seen])),
    "trace mkdir": (Seen(MKDIR, None, WALL), lambda seen: render_text([seen])),
    "trace --summary": (STALLS, render_text),
    "top": (top_page(), top_lines),
    "top on a terminal": (top_page(), rich_screen),
    "plan": (PLAN, lambda plan: plan_page(plan, 10, with_ladder=True)),
    "plan --diff": (plan_diff(PLAN, node_plan_of(frame([pod("other", anon=400)], used=900))), diff_page),
    "explain": (audit_record(), explained),
    "explain --writes": (audited_write(CHANGE, "n1", 0.0), lambda write: explained_writes([write])),
    "doctor": (DOCTOR, lambda report: doctor_text(report, with_fixes=True)),
    "demo": (Event(1, "agent", "text", "hog", {"level": "error"}), demo),
    "demo, an eviction": (EVICTED, demo),
    "events": (VICTIM, lambda victim: eviction_event(victim, LINES[0]).message),  # type: ignore[union-attr]
}
TEXTS: dict[str, Callable[[str], str]] = {
    "text log": lambda text: log_text(TextFormatter(), text),
    "errors": echoed,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RENDERERS)
def test_a_renderer_prints_nothing_that_is_obeyed(name: str) -> None:
    value, render = RENDERERS[name]
    chance = random.Random(f"{name} 1")
    for _ in range(ROUNDS):
        bad = poisoned(value, lambda: hostile(chance))
        text = render(bad)
        assert is_shown_only(text), (bad, text)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_printed_without_what_is_obeyed(name: str) -> None:
    chance = random.Random(name)
    for _ in range(ROUNDS):
        text = hostile(chance)
        shown = TEXTS[name](text)
        assert is_shown_only(shown), (text, shown)


# As long as it is when it is shown, so that lines break alike.
@pytest.mark.parametrize("name", [name for name in RENDERERS if "terminal" not in name])
def test_a_newline_in_a_name_begins_no_line(name: str) -> None:
    value, render = RENDERERS[name]
    forged, plain = (render(poisoned(value, lambda text=text: text)) for text in ("a\nevicting b", "a#x0aevicting b"))  # type: ignore[misc]
    assert len(forged.split("\n")) == len(plain.split("\n")) or name == "demo"
    assert not any(line.startswith("evicting b") for line in forged.split("\n"))


def test_a_log_line_is_one_line_and_a_traceback_stands_below_it() -> None:
    first, *others = log_text(TextFormatter(), "x\n2026-01-01 00:00:00,000 I evicting a/b").split("\n")
    assert first.endswith(r"the tick ended: x\x0a2026-01-01 00:00:00,000 I evicting a/b")
    assert others and all(line.startswith("  ") for line in others)


def test_markup_is_text() -> None:
    (row,) = top_page().rows
    shown = rich_screen(msgspec.structs.replace(top_page(), rows=(msgspec.structs.replace(row, name="[red]x[/red]"),)))
    assert "[red]x[/red]" in shown


def test_json_says_the_same_and_is_obeyed_by_nothing() -> None:
    chance = random.Random(3)
    for _ in range(ROUNDS):
        text = hostile(chance)
        for raw in (json_bytes({"a": text}), render_json([Seen(msgspec.structs.replace(OOM, comm=text), None, WALL)])):
            assert not re.search(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]|\xd8\x9c", raw)
        found = msgspec.json.decode(json_bytes({"a": text}))["a"]
        surrogates = [char for char in text if 0xD800 <= ord(char) < 0xE000]
        assert found == text if not surrogates else all(char not in found for char in surrogates)
        msgspec.json.decode(log_text(JsonFormatter(), text))


def test_every_character_is_shown_once_and_for_all() -> None:
    shown = [printable(chr(code)) for code in range(0x110000)]
    text = "".join(shown)
    assert is_shown_only(text) and "\n" not in text
    assert [printable(each) for each in shown] == shown
    assert printable("a\x1b\x9b\u202e\u2066\u200f\u061c\u2028\udc80") == (
        r"a\x1b\x9b\u{202e}\u{2066}\u{200f}\u{61c}\u{2028}\u{dc80}"
    )
    assert printable("Grüße, 名前 \u00a0½") == "Grüße, 名前 \u00a0½"
    assert printable_text("a\x07\nb\r") == "a\\x07\nb\\x0d"
    assert page(["a\nb", "c"]) == "a\\x0ab\nc"


def test_what_is_echoed_as_json_is_json() -> None:
    result = CliRunner().invoke(click.command(lambda: echo_json({"a": "\x9b\udc80"}, indent=2)))
    assert msgspec.json.decode(result.output) == {"a": "\x9b\\u{dc80}"}
    assert "\x9b" not in result.output
