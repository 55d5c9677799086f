"""What parts of a round have in common: no round of their own, and problems that are logged once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from koordebpf.agent.strategies.part import ReportingPart, StrategyPart
from koordebpf.policy.block_io.strategy import BLOCK_IO
from koordebpf.policy.strategy import Decision, Empty
from koordebpf.state.build import view_of_frame
from koordebpf.units import NS_PER_S
from tests.support.values.builders import frame, pod


@pytest.fixture
def part() -> ReportingPart:
    return ReportingPart("block IO")


def test_it_asks_for_no_round_and_no_cpu(part: ReportingPart) -> None:
    assert part.take_due(0) is False
    assert part.needs_cpu is False


def test_a_problem_that_lasts_is_logged_once_also_over_rounds_that_are_skipped(
    part: ReportingPart, caplog: pytest.LogCaptureFixture
) -> None:
    for second, problems in enumerate((["a"], ["a"], None, ["a", "b"], [], ["a"])):
        part.report(problems, 60 * second * NS_PER_S)
    assert caplog.messages == ["a", "b", "a"]


def test_what_is_suppressed_is_counted_when_its_span_is_over(
    part: ReportingPart, caplog: pytest.LogCaptureFixture
) -> None:
    part.report([f"pod {number}" for number in range(12)], 0)
    assert len(caplog.messages) == 10
    part.report(None, 31 * NS_PER_S)
    assert caplog.messages[10:] == ["block IO: 2 more suppressed within 31 s"]


def test_a_failure_is_logged_each_time_it_comes_back(part: ReportingPart, caplog: pytest.LogCaptureFixture) -> None:
    part.report_failures(["EBUSY"], 0)
    part.report_failures([], NS_PER_S)
    part.report_failures(["EBUSY"], 60 * NS_PER_S)
    assert [text.split(" ")[0] for text in caplog.messages] == ["EBUSY", "EBUSY"]


class Made(Decision[Empty], frozen=True, kw_only=True):
    """A decision with problems, as those of QoS strategies."""

    problems: tuple[str, ...] = ()


class Part(StrategyPart[Made]):
    def __init__(self) -> None:
        super().__init__("block IO", BLOCK_IO, Made)
        self.taken: list[str] = []

    def take(self, made: Made, now_ns: int) -> Iterable[str]:
        self.taken.append(f"{made.reason} at {now_ns}")
        return made.problems


def test_a_round_that_is_skipped_is_not_taken_and_keeps_what_was_wrong(caplog: pytest.LogCaptureFixture) -> None:
    part, state = Part(), Empty()
    view = view_of_frame(frame([pod("a")]))
    rounds: list[Decision[Any] | None] = [
        Made(state=state, reason="one", problems=("a",)),
        Made(state=state, reason="not due", skipped="not_due"),
        None,
        Decision(state=state, reason="of another type"),
        Made(state=state, reason="two", problems=("a", "b")),
    ]
    for made in rounds:
        part.carry_out({} if made is None else {BLOCK_IO.name: made, "other": made}, view)
    assert part.taken == [f"one at {view.now_ns}", f"two at {view.now_ns}"]
    assert caplog.messages == ["a", "b"]
