"""Prints a story while it happens, and its verdict: 80 columns for people, or JSON lines."""

from __future__ import annotations

import os
import re
import textwrap
from typing import Literal, TextIO

import msgspec

from koordebpf.demo.output import Event
from koordebpf.demo.story import LOWER_PERCENT, THRESHOLD_PERCENT, Story
from koordebpf.demo.verdict import Rounds, StoryFacts, Verdict, format_ms
from koordebpf.printable import json_bytes, printable, printable_text, with_schema
from koordebpf.units import MIB, NS_PER_MS, NS_PER_S, format_bytes

_COLUMNS = 80
_BAR = 30
_NAME = 24  # of a verdict line
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_PAINT = re.compile("(\x1b\\[(?:" + "|".join(("0", *_CODES.values())) + ")m)")


class StoryLine(Story, frozen=True, kw_only=True):
    """Which story it is, on a node of so many bytes."""

    event: Literal["story"] = "story"
    limit_bytes: int


class EndLine(Verdict, frozen=True, kw_only=True):
    """What it came to, and every number that was measured."""

    event: Literal["verdict"] = "verdict"
    facts: StoryFacts


class JsonLines:
    """Every event as one JSON object a line; the last is the verdict, with every number that was measured."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def begin(self, story: Story, limit_bytes: int) -> None:
        """Say which story it is."""
        self._line("demo-story", StoryLine(**msgspec.structs.asdict(story), limit_bytes=limit_bytes))

    def tell(self, event: Event) -> None:
        """Say what happened."""
        self._line("demo-event", event)

    def end(self, facts: StoryFacts, verdict: Verdict) -> None:
        """Say what it came to."""
        self._line("demo-verdict", EndLine(**msgspec.structs.asdict(verdict), facts=facts))

    def _line(self, name: str, value: object) -> None:
        print(with_schema(name, json_bytes(value)).decode(), file=self._out, flush=True)


class Screen:
    """The story for people. What the agent says while it starts is shown with `verbose` only, except errors."""

    def __init__(self, out: TextIO, *, verbose: bool = False) -> None:
        self._out = out
        self._shows_notices = verbose
        self._has_colour = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._since_ns: int | None = None
        self._limit_bytes = 1

    def begin(self, story: Story, limit_bytes: int) -> None:
        """Say who is there and what is going to happen."""
        self._limit_bytes = limit_bytes
        self._print(self._paint(f"koordebpf demo: {story.title}", "bold"))
        self._print()
        self._print(
            textwrap.fill(
                f"The node: a cgroup of {format_bytes(limit_bytes)} with one latency-sensitive (LS) and two best-effort"
                f" (BE) pods. When {THRESHOLD_PERCENT} % of it are used, BE pods are evicted, lowest priority first,"
                f" until it is below {LOWER_PERCENT} %. The agent is the real one: koordebpf run --enforce.",
                _COLUMNS,
                break_on_hyphens=False,
            )
        )
        self._print()
        for pod in story.pods:
            kind = "BE" if pod.is_be else "LS"
            colour = "red" if pod.name == story.aggressor else "green" if not pod.is_be else "cyan"
            self._print(f"  {self._paint(f'{pod.name:<8}', colour)}{kind}, priority {pod.priority}: {pod.says}")
        self._print()
        self._print(f"  {'second':<8}{'# used  : page cache  | evicts above':<{_BAR + 11}}MiB by pod")

    def tell(self, event: Event) -> None:
        """Say what happened."""
        match event.event:
            case "agent":
                self._agent(event)
            case "usage":
                self._usage(event)
            case "evicted":
                self._evicted(event)
            case "worker" if event.text == "begins":
                self._shows_notices = True
                self._row(event.at_ns, self._paint(f"{printable(str(event.pod))} begins", "yellow"))
            case _:
                pass

    def end(self, facts: StoryFacts, verdict: Verdict) -> None:
        """Say what it came to."""
        self._print()
        good = verdict.is_as_it_should_be
        self._print(
            self._paint(
                "verdict: as it should be" if good else "verdict: not as it should be", "green" if good else "red"
            )
        )
        for line in verdict.lines:
            word = {True: self._paint("ok", "green"), False: self._paint("NO", "red"), None: "  "}[line.ok]
            first, *rest = textwrap.wrap(printable(line.text), _COLUMNS - _NAME - 6) or [""]
            self._print(f"  {word}  {line.name:<{_NAME}}{first}")
            for more in rest:
                self._print(f"      {'':<{_NAME}}{more}")
        self._print()
        self._print(
            f"  {f'{facts.ls_pod} (LS) timed itself:':<28}{'rounds':>8}{'median':>11}{'p99':>11}{'slowest':>11}"
        )
        trouble = {"hog": "while it was eaten", "page-cache": "during the flood", "own-limit": "during the thrashing"}
        self._rounds("before", facts.quiet)
        self._rounds(trouble[facts.kind], facts.trouble)
        if facts.crossed_ns is not None:
            self._rounds("from crossing to memory back", facts.above)
        if facts.kind == "hog":
            others = "without an eviction: koordebpf demo --story page-cache, --story own-limit"
            self._print()
            self._print(self._paint(others, "dim"))

    def _rounds(self, name: str, rounds: Rounds | None) -> None:
        if rounds is None:
            self._print(f"    {name:<28}{0:>6}")
            return
        times = (rounds.median_ns, rounds.p99_ns, rounds.max_ns)
        self._print(f"    {name:<28}{rounds.count:>6}" + "".join(f"{format_ms(ns):>11}" for ns in times))

    def _agent(self, event: Event) -> None:
        is_bad = event.numbers["level"] != "info"
        is_error = event.numbers["level"] in ("error", "critical")
        if not (self._shows_notices or is_error):
            return
        colour = "red" if is_error else "yellow" if is_bad else "dim"
        for line in event.text.split("\n"):
            wrapped = textwrap.wrap(
                f"koordebpf: {printable(line)}", _COLUMNS - 10, subsequent_indent="  ", break_on_hyphens=False
            )
            self._row(event.at_ns, self._paint(wrapped[0], colour))
            for more in wrapped[1:]:
                self._print(f"{'':10}{self._paint(more, colour)}")

    def _usage(self, event: Event) -> None:
        used = event.numbers["used_bytes"] * _BAR // self._limit_bytes
        usage = event.numbers["usage_bytes"] * _BAR // self._limit_bytes
        at = THRESHOLD_PERCENT * _BAR // 100
        cells = ["#" if i < used else ":" if i < usage else " " for i in range(_BAR)]
        colour = "red" if used >= at else "green"
        bar = self._paint("".join(cells[:at]), colour) + "|" + self._paint("".join(cells[at:]), colour)
        percent = event.numbers["used_bytes"] * 100 // self._limit_bytes
        pods = " ".join(f"{name} {size // MIB}" for name, size in event.numbers["pods_usage_bytes"].items())
        self._row(event.at_ns, f"[{bar}]{percent:>4} %  {pods}")

    def _evicted(self, event: Event) -> None:
        numbers = event.numbers
        zero_ns = numbers["crossed_ns"] or numbers["seen_ns"] or numbers["decided_ns"]
        rows = [
            (
                numbers["crossed_ns"],
                "crossed",
                f"last reading below {THRESHOLD_PERCENT} % (from outside, about each ms)",
            ),
            (numbers["seen_ns"], "seen", "koordebpf notices"),
            (numbers["decided_ns"], "decided", printable(event.text.split(":")[0])),
            (numbers["sent_ns"], "killed", "SIGKILL is out to every process of the pod"),
            (numbers["freed_ns"], "back", f"{format_bytes(numbers['credit_bytes'] or 0)} are free again"),
        ]
        self._print()
        for ns, word, text in rows:
            if ns is not None:
                ms = f"{(ns - zero_ns) / NS_PER_MS:+8.1f} ms"
                self._print(f"  {self._paint(ms, 'bold')}  {word:<9}{text}")
        order = ", ".join(f"{pod['pod']} ({pod['priority']})" for pod in numbers["ranking"])
        self._print(f"{'':15}why      lowest priority first: {order}")
        self._print()

    def _row(self, at_ns: int, text: str) -> None:
        if self._since_ns is None:
            self._since_ns = at_ns
        self._print(f"  {max(at_ns - self._since_ns, 0) / NS_PER_S:6.2f}  {text}")

    def _print(self, text: str = "") -> None:
        print(_printable_but_for_paint(text.rstrip()), file=self._out, flush=True)

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self._has_colour and text else text


def _printable_but_for_paint(text: str) -> str:
    return "".join(part if _PAINT.fullmatch(part) else printable_text(part) for part in _PAINT.split(text))
