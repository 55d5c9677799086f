"""Events of pods that Katalyst's plugins ask for: through the sinks, as an agent publishes what happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from koordebpf.clock import SystemClock
from koordebpf.policy.memory import OutcomeArrived
from koordebpf.policy.strategy import SoftNotice
from koordebpf.report.events import EventPoster, EventSink
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import PendingRelease
from koordebpf.store.open_plans import OpenPlans
from koordebpf.store.sink import AgentStopped, Event, MemoryReleased, NoticeEnded, PlanDecided, ReleaseOverdue
from tests.strategies.katalyst.test_katalyst_frames import Node, forced, kpod
from tests.support.taken_events import TakenEvents

WHY = "reason: plugin p asks for it: because; forced"


class Agent:
    """The sinks that matter, and a plan whose victim a plugin asks for."""

    def __init__(self) -> None:
        self.api, plans = TakenEvents(), OpenPlans("n1", dry_run=False)
        self.sinks = (plans, EventSink(EventPoster(self.api), plans, SystemClock()))
        plan = Node([kpod("batch")]).answer(forced("p", "batch")).plan
        self.publish(PlanDecided(plan, (outcome("api", Result.SENT),), None, 1, 0.0))

    def publish(self, *events: Event) -> None:
        for event in events:
            for sink in self.sinks:
                if type(event) in sink.takes:
                    sink.publish(event)

    def events(self) -> list[tuple[str, str, str, str | None]]:
        """Return what was posted until now, and post no more."""
        self.publish(AgentStopped(2))
        return self.api.events


def outcome(executor: str, result: Result) -> Outcome:
    return Outcome("batch", "kat", "batch", executor, result, "what it says", 1, sent_ns=1)


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.events()


@pytest.mark.parametrize(
    ("executor", "reason", "action"),
    [
        ("api", "EvictCreated", "Evicting"),
        ("delete", "EvictCreated", "Evicting"),
        ("cri", "ContainerStopped", "ContainerStopping"),
        ("cgroup", "EvictSucceeded", "Evicting"),
    ],
)
def test_what_was_done_has_katalysts_reason(agent: Agent, executor: str, reason: str, action: str) -> None:
    agent.publish(OutcomeArrived(outcome(executor, Result.DONE), 1))
    assert agent.events() == [(reason, "Normal", f"what it says; {WHY}", action)]


def test_a_refusal_is_one_warning_however_often_it_comes(agent: Agent) -> None:
    for result in (Result.REFUSED, Result.REFUSED, Result.FAILED):
        agent.publish(OutcomeArrived(outcome("api", result), 1))
    assert agent.events() == [("EvictFailed", "Warning", f"what it says; {WHY}", "Evicting")]


@pytest.mark.parametrize("result", [Result.GONE, Result.HELD, Result.DRY_RUN, Result.SENT])
def test_what_was_not_tried_has_none(agent: Agent, result: Result) -> None:
    agent.publish(OutcomeArrived(outcome("api", result), 1))
    assert agent.events() == []


def test_how_an_accepted_eviction_ends_is_an_event_too(agent: Agent) -> None:
    entry = PendingRelease("batch", 1, 0)
    agent.publish(
        OutcomeArrived(outcome("api", Result.DONE), 1),
        ReleaseOverdue(entry, 2, 3),
        MemoryReleased(entry, 4),
        MemoryReleased(entry, 5),
    )
    assert [(reason, kind) for reason, kind, *_ in agent.events()] == [
        ("EvictCreated", "Normal"),
        ("EvictExceededGracePeriod", "Warning"),
        ("EvictSucceeded", "Normal"),
    ]


def test_memory_of_a_pod_that_no_plugin_asked_for_is_no_news(agent: Agent) -> None:
    agent.publish(MemoryReleased(PendingRelease("other", 1, 0), 4), ReleaseOverdue(PendingRelease("other", 1, 0), 2, 3))
    assert agent.events() == []


def test_notices_are_events_once_an_hour_for_each_plugin(agent: Agent) -> None:
    for plugin, problem, observed in (("p", None, 1), ("p", None, 2), ("q", None, 1), ("p", "no disk", 1)):
        notice = SoftNotice("kat", "batch", plugin, f"observed {observed}\n", "batch")
        agent.publish(NoticeEnded(notice, problem, 1, 0.0))
    assert agent.events() == [
        ("NotifySuccess", "Normal", "plugin p asks it to leave: observed 1\\x0a", "Notifying"),
        ("NotifySuccess", "Normal", "plugin q asks it to leave: observed 1\\x0a", "Notifying"),
        ("NotifyFailed", "Warning", "plugin p asks it to leave: observed 1\\x0a, error no disk", "Notifying"),
    ]
