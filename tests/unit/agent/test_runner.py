"""What runners of strategies have in common: no round of their own, and problems that are logged once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from koordebpf.errors import CgroupGone, KernelFileError, KoordebpfError
from koordebpf.policy.strategy import Decision, Empty
from koordebpf.runner.runner import Runner, StrategyRunner
from koordebpf.state.build import view_of_frame
from koordebpf.state.view import NodeView
from koordebpf.strategies.block_io.decide import BLOCK_IO
from koordebpf.strategies.block_io.values import BlockIOMeasured
from koordebpf.units import NS_PER_S
from tests.support.values.builders import frame, pod


@pytest.fixture
def runner() -> Runner:
    return Runner("block IO")


def test_it_asks_for_no_round_and_no_cpu(runner: Runner) -> None:
    assert runner.poll_due(0) is False
    assert runner.needs_cpu is False


def test_a_problem_that_lasts_is_logged_once_also_over_rounds_that_are_skipped(
    runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    for second, problems in enumerate((["a"], ["a"], None, ["a", "b"], [], ["a"])):
        runner.report(problems, 60 * second * NS_PER_S)
    assert caplog.messages == ["a", "b", "a"]


def test_what_is_suppressed_is_counted_when_its_span_is_over(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    runner.report([f"pod {number}" for number in range(12)], 0)
    assert len(caplog.messages) == 10
    runner.report(None, 31 * NS_PER_S)
    assert caplog.messages[10:] == ["block IO: 2 more suppressed within 31 s"]


def test_a_failure_is_logged_each_time_it_comes_back(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    runner.report_failures(["EBUSY"], 0)
    runner.report_failures([], NS_PER_S)
    runner.report_failures(["EBUSY"], 60 * NS_PER_S)
    assert [text.split(" ")[0] for text in caplog.messages] == ["EBUSY", "EBUSY"]


class Made(Decision[Empty], frozen=True, kw_only=True):
    """A decision with problems, as those of QoS strategies."""

    problems: tuple[str, ...] = ()


class Taking(StrategyRunner[BlockIOMeasured, Made]):
    def __init__(self, measure: Callable[[int], BlockIOMeasured | None] = lambda _: None) -> None:
        super().__init__("block IO", BLOCK_IO, Made, measure)
        self.taken: list[str] = []

    def act(self, made: Made, view: NodeView) -> Iterable[str]:
        self.taken.append(f"{made.reason} at {view.now_ns}")
        return made.problems


def test_a_round_that_is_skipped_is_not_taken_and_keeps_what_was_wrong(caplog: pytest.LogCaptureFixture) -> None:
    runner, state = Taking(), Empty()
    view = view_of_frame(frame([pod("a")]))
    rounds: list[Decision[Any] | None] = [
        Made(state=state, reason="one", problems=("a",)),
        Made(state=state, reason="not due", skipped="not_due"),
        None,
        Decision(state=state, reason="of another type"),
        Made(state=state, reason="two", problems=("a", "b")),
    ]
    for made in rounds:
        runner.carry_out({} if made is None else {BLOCK_IO.name: made, "other": made}, view)
    assert runner.taken == [f"one at {view.now_ns}", f"two at {view.now_ns}"]
    assert caplog.messages == ["a", "b"]


def test_it_is_measured_in_rounds_and_not_in_samples() -> None:
    found, given = BlockIOMeasured(version=2), frame([]).measured
    asked: list[int] = []
    runner = Taking(lambda now_ns: asked.append(now_ns) or found)  # type: ignore[func-returns-value]
    assert runner.measure(given, is_sample=True) is given
    assert runner.measure(given, is_sample=False).parts == {BLOCK_IO.name: found}
    assert asked == [given.now_ns]


def test_an_error_is_logged_once_until_it_changes_or_ends(caplog: pytest.LogCaptureFixture) -> None:
    gone, garbage = CgroupGone("/cg"), KernelFileError("/cg/file", "x", "must be a number")
    left: list[KoordebpfError | None] = [gone, gone, garbage, None, garbage]

    def measure(now_ns: int) -> BlockIOMeasured:
        if (error := left.pop(0)) is not None:
            raise error
        return BlockIOMeasured(version=2)

    runner = Taking(measure)
    measured = [bool(runner.measure(frame([]).measured, is_sample=False).parts) for _ in range(5)]
    assert measured == [False, False, False, True, False]
    assert caplog.messages == [f"block IO was not measured for: {error}" for error in (gone, garbage, garbage)]
