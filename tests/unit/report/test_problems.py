"""However much is wrong, and however often it changes, the log says it in a few lines and a count."""

from __future__ import annotations

import logging

import pytest

from koordebpf.report.log_sink import ProblemLog
from koordebpf.units import NS_PER_S


@pytest.fixture
def problems() -> ProblemLog:
    return ProblemLog()


def test_a_problem_is_logged_once_as_long_as_it_lasts(problems: ProblemLog, caplog: pytest.LogCaptureFixture) -> None:
    for second in range(100):
        problems.report({"node": ["its capacity is odd"]}, second * NS_PER_S)
    assert caplog.messages == ["its capacity is odd"]


def test_300_pods_that_change_are_no_flood(problems: ProblemLog, caplog: pytest.LogCaptureFixture) -> None:
    for second in range(20):
        wrong = [f"pods/a/p{n}: '{second}': must be a list of CPUs" for n in range(300)]
        problems.report({"pods": wrong, "source": ["pods: the list is old"]}, second * NS_PER_S)
        problems.flush(second * NS_PER_S)
    assert len(caplog.messages) == 10 + 1
    assert "pods: the list is old" in caplog.messages  # what is another reason's is not lost among them
    problems.flush(31 * NS_PER_S)
    assert caplog.messages[-1] == "pods: 5990 more suppressed within 31 s"
    problems.flush(99 * NS_PER_S)
    assert len(caplog.messages) == 12


def test_the_next_span_has_its_own_ten(problems: ProblemLog, caplog: pytest.LogCaptureFixture) -> None:
    for second in (0, 30):
        problems.report({"pods": [f"{second} {n}" for n in range(12)]}, second * NS_PER_S)
    assert len(caplog.messages) == 10 + 1 + 10
    assert caplog.messages[10] == "pods: 2 more suppressed within 30 s"


def test_the_count_has_the_level_of_what_it_counts(problems: ProblemLog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "koordebpf")
    for n in range(12):
        problems.add("files of memoryQos", f"wrote {n}", 0, logging.INFO)
        problems.add("pods", f"odd {n}", 0, logging.INFO if n % 2 else logging.WARNING)
    problems.flush(31 * NS_PER_S)
    assert [(each.levelno, each.getMessage()) for each in caplog.records[-2:]] == [
        (logging.INFO, "files of memoryQos: 2 more suppressed within 31 s"),
        (logging.WARNING, "pods: 2 more suppressed within 31 s"),
    ]
