"""Which sinks an event is given to: those that say they take its type, and what they say is what they do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.agent.sinks import Sinks
from koordebpf.clock import SystemClock
from koordebpf.store.sink import EVENTS, AgentStopped, Event, TickEnded, TickFailed

PACKAGE = Path(__file__).parents[3] / "koordebpf"


def sinks_in(source: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the name of each sink, what it says it takes, and the events that its `publish` matches."""
    for found in ast.walk(ast.parse(source)):
        if not isinstance(found, ast.ClassDef):
            continue
        for part in found.body:
            if isinstance(part, ast.FunctionDef) and part.name == "publish":
                written = [each.pattern for each in ast.walk(part) if isinstance(each, ast.match_case)]
                alike = [each.patterns if isinstance(each, ast.MatchOr) else [each] for each in written]
                cases = [each for one in alike for each in one]
                matched = [ast.unparse(case.cls) for case in cases if isinstance(case, ast.MatchClass)]
                if matched:
                    assert len(matched) == len(cases)
                    yield found.name, _taken(found), matched


def _taken(found: ast.ClassDef) -> list[str]:
    for part in found.body:
        if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "takes":
            assert isinstance(part.value, ast.Tuple)
            return [ast.unparse(each) for each in part.value.elts]
    return []


ALL = [each for path in sorted(PACKAGE.rglob("*.py")) for each in sinks_in(path.read_text())]


def test_all_sinks_are_found() -> None:
    assert {name for name, _, _ in ALL} == {
        "AuditTrail",
        "EventSink",
        "EvictionHookSink",
        "ForesightSink",
        "FrameLog",
        "Health",
        "KatalystSink",
        "LogSink",
        "MetricsSink",
        "OpenPlans",
        "Recent",
        "Recorder",
        "ShadowSink",
    }


@pytest.mark.parametrize(("name", "taken", "matched"), ALL, ids=[name for name, _, _ in ALL])
def test_a_sink_takes_what_it_matches(name: str, taken: list[str], matched: list[str]) -> None:
    assert sorted(taken) == sorted(matched)
    assert set(taken) <= {each.__name__ for each in EVENTS}


def test_every_event_is_taken() -> None:
    own = {"ReportFailed"}  # `Sinks` counts it
    assert {each for _, taken, _ in ALL for each in taken} | own == {each.__name__ for each in EVENTS}


class Taker:
    """A sink that takes these; it fails on every one where it is broken."""

    def __init__(self, name: str, *takes: type[Event], is_broken: bool = False) -> None:
        self.name, self.takes, self.is_broken = name, takes, is_broken
        self.got: list[Event] = []

    def publish(self, event: Event) -> None:
        self.got.append(event)
        if self.is_broken:
            raise OSError("no room")


def test_an_event_is_given_to_those_alone_that_take_it() -> None:
    broken = Taker("broken", TickEnded, is_broken=True)
    ended, both = Taker("ended", TickEnded), Taker("both", TickFailed, TickEnded)
    sinks = Sinks((broken, ended, both), SystemClock())
    events = TickEnded(1), TickFailed("disk on fire"), AgentStopped(2)
    for event in events:
        sinks.publish(event)
    assert (broken.got, ended.got, both.got) == ([events[0]], [events[0]], [events[0], events[1]])
    assert sinks.errors == {"broken": 1}


def test_one_that_is_added_takes_events_after_the_others() -> None:
    order: list[str] = []

    class Ordered(Taker):
        def publish(self, event: Event) -> None:
            order.append(self.name)

    sinks = Sinks((Ordered("first", TickEnded),), SystemClock())
    sinks.add(Ordered("added", TickEnded))
    sinks.publish(TickEnded(1))
    sinks.publish(TickFailed("disk on fire"))
    assert order == ["first", "added"]
