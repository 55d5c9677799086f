"""What the agent and the workers of a demo print: what is passed on, and what is kept of it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from koordebpf.demo.output import Event, StoryOutput
from koordebpf.demo.verdict import Crossing, Rounds, Usage
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.audit_record import OpenPlan
from tests.support.values.builders import frame, plan_of, pod


class Rig:
    """The output of a story with the aggressor hog; `events` are what is passed on."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.crossing = Crossing(100, 80)
        self.output = StoryOutput("hog", self.crossing, self.events.append)

    def agent(self, message: str, level: str = "info", **more: str) -> None:
        self.output.add_agent_line(json.dumps({"message": message, "level": level, **more}).encode())

    def worker(self, name: str, event: str, at_ns: int = 5, **numbers: Any) -> None:
        self.output.add_worker_line(name, json.dumps({"at_ns": at_ns, "event": event, **numbers}).encode())

    def used(self, *samples: int) -> None:
        """Sample the node at 10 ns, 20 ns and so on."""
        for number, each in enumerate(samples, start=1):
            self.crossing.push(Usage(10 * number, each, each))

    def evicts(self, seen_ns: int | None = 25, freed_ns: int | None = 60) -> None:
        """Audit an eviction of the hog, decided at 30 ns."""
        plan = plan_of(frame([pod("hog", anon=300), pod("calm", anon=10)], used=900))
        line = OpenPlan(plan, node="n", dry_run=False, seen_ns=seen_ns, decided_ns=30, wall_s=1.0)
        (victim,) = plan.victims
        who = victim.candidate
        line.add_outcome(Outcome(who.uid, "spark", "hog", "cgroup", Result.DONE, "gone", 30, sent_ns=40))
        if freed_ns is not None:
            line.record_freed(who.uid, freed_ns)
        self.output.add_audit_line(msgspec.json.encode(line.record()))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_the_agent_watches_when_it_says_so(rig: Rig) -> None:
    rig.agent("loading")
    assert not rig.output.is_watching
    rig.agent("watching the node")
    assert rig.output.is_watching
    assert [(each.event, each.text, each.pod, each.numbers) for each in rig.events] == [
        ("agent", "loading", None, {"level": "info"}),
        ("agent", "watching the node", None, {"level": "info"}),
    ]


@pytest.mark.parametrize(
    ("level", "is_problem"), [("info", False), ("warning", False), ("error", True), ("critical", True)]
)
def test_its_errors_are_problems_and_a_traceback_stands_below(level: str, is_problem: bool, rig: Rig) -> None:
    rig.agent("boom", level, traceback="Traceback: x")
    assert rig.output.problems == (["boom"] if is_problem else [])
    assert rig.events[0].text == "boom\nTraceback: x"


@pytest.mark.parametrize("line", [b"usage: koordebpf \xff", b"[]", b'{"level": "info"}', b'{"message": "x"}'])
def test_what_is_no_log_line_is_an_error_in_its_own_words(line: bytes, rig: Rig) -> None:
    rig.output.add_agent_line(line)
    text = line.decode(errors="replace")
    assert [(each.event, each.text, each.numbers) for each in rig.events] == [("agent", text, {"level": "error"})]
    assert rig.output.problems == []


def test_an_agent_that_does_not_start_is_asked_why_first(rig: Rig) -> None:
    assert rig.output.refusal("exit code 1") == "exit code 1"
    rig.agent("no memory controller", "error")
    assert rig.output.refusal("exit code 1") == "no memory controller"
    rig.output.add_agent_line(b"Traceback")
    assert rig.output.refusal("exit code 1") == "Traceback; no memory controller"


def test_a_worker_is_ready_and_the_aggressor_begins_when_they_say_so(rig: Rig) -> None:
    rig.worker("web", "ready", mib=100)
    rig.worker("web", "begins", 6)
    assert (rig.output.ready, rig.output.began_ns) == ({"web"}, None)
    rig.worker("hog", "begins", 7)
    rig.worker("hog", "end", 8)
    assert (rig.output.ready, rig.output.began_ns) == ({"web"}, 7)
    assert rig.events == [
        Event(5, "worker", "ready", "web", {"mib": 100}),
        Event(6, "worker", "begins", "web"),
        Event(7, "worker", "begins", "hog"),
        Event(8, "worker", "end", "hog"),
    ]


def test_what_a_worker_complains_of_is_a_problem_with_its_name(rig: Rig) -> None:
    rig.output.add_worker_error("web", b"no room \xff")
    assert rig.output.problems == ["web: no room \ufffd"]


def test_an_eviction_is_passed_on_with_its_moments_and_its_ranking(rig: Rig) -> None:
    rig.used(50, 90)
    rig.evicts()
    (event,) = rig.events
    assert (event.event, event.pod) == ("evicted", "hog") and event.text.startswith("evicting spark/hog")
    assert {name: event.numbers[name] for name in ("crossed_ns", "seen_ns", "decided_ns", "sent_ns", "freed_ns")} == {
        "crossed_ns": 20, "seen_ns": 25, "decided_ns": 30, "sent_ns": 40, "freed_ns": 60,
    }  # fmt: skip
    assert [each["pod"] for each in event.numbers["ranking"]] == ["hog", "calm"]
    assert [each.pod for each in rig.output.evictions] == ["hog"]


def test_the_crossing_is_the_agents_where_it_saw_it_first(rig: Rig) -> None:
    rig.used(50, 90, 99, 120)
    assert rig.output.crossed_ns() == 30
    rig.evicts(seen_ns=25)
    assert rig.output.crossed_ns() == 20


def test_rounds_are_counted_before_the_trouble_during_it_and_above_the_threshold(rig: Rig) -> None:
    assert rig.output.rounds_around(100) == (None, None, None)
    rig.worker("web", "rounds", rounds_ns=[[1, 2], [12, 2]])
    rig.worker("web", "rounds", rounds_ns=[[32, 2], [45, 3], [70, 4]])
    assert rig.events == []  # they are for the end
    assert rig.output.rounds_around(100) == (None, None, None)  # no trouble began
    rig.worker("hog", "begins", 10)
    one, rest = Rounds(1, 2, 2, 2), Rounds(4, 2, 4, 4)
    assert rig.output.rounds_around(100) == (one, rest, None)
    assert rig.output.rounds_around(70) == (one, Rounds(3, 2, 3, 3), None)
    rig.used(50, 99, 120, 120, 70)  # from 20 ns to 50 ns
    assert rig.output.rounds_around(100) == (one, Rounds(3, 2, 3, 3), Rounds(2, 2, 3, 3))
    rig.evicts(freed_ns=None)
    assert rig.output.rounds_around(100) == (one, Rounds(3, 2, 3, 3), Rounds(2, 2, 3, 3))
    rig.evicts(seen_ns=25, freed_ns=40)  # the first one counts
    assert rig.output.rounds_around(100)[2] == Rounds(2, 2, 3, 3)


def test_trouble_ends_when_the_victims_memory_is_back(rig: Rig) -> None:
    rig.worker("web", "rounds", rounds_ns=[[1, 2], [12, 2], [32, 2], [45, 3], [70, 4]])
    rig.worker("hog", "begins", 10)
    rig.used(50, 99, 120, 120, 120, 120, 120, 70)
    rig.evicts(seen_ns=25, freed_ns=40)
    assert rig.output.rounds_around(100) == (Rounds(1, 2, 2, 2), Rounds(2, 2, 2, 2), Rounds(1, 2, 2, 2))
