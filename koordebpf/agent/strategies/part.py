"""What a strategy's part of a round is, and what most of them have in common."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from koordebpf.policy.strategy import Decision, Strategy
from koordebpf.report.log.problems import ProblemLog
from koordebpf.state.measured import Measured
from koordebpf.state.view import NodeView

D = TypeVar("D", bound=Decision[Any])


class RoundPart(Protocol):
    """One of them. Nothing of it waits.

    `needs_cpu`: it decides from a measurement of the CPUs, too.
    """

    needs_cpu: bool

    def take_due(self, now_ns: int) -> bool:
        """Tell whether a round is to be made before its time; once for each reason."""

    def measure(self, measured: Measured, *, is_sample: bool) -> Measured:
        """Return the measurement with this part's own; as it is where that could not be made.

        `is_sample`: memory is short, and a round has no time for anything else.
        """

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Act on the decisions of a round, by strategy; what skipped the round keeps what it has."""


class RegularPart:
    """A `RoundPart` for which the rounds that are made anyway are enough, and no CPU has to be measured."""

    needs_cpu = False

    def take_due(self, now_ns: int) -> bool:
        """As `RoundPart.take_due`."""
        return False


class ReportingPart(RegularPart):
    """One that logs what its strategy cannot use; `what` is what that is about, as "block IO"."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._problems = ProblemLog()

    def report(self, problems: Iterable[str] | None, now_ns: int) -> None:
        """Log those of all problems of a round that are new, and how many were suppressed.

        None: the strategy skipped the round, and what was wrong before still is.
        """
        if problems is not None:
            self._problems.report({self._what: problems}, now_ns)
        self._problems.flush(now_ns)

    def report_failures(self, sentences: Iterable[str], now_ns: int) -> None:
        """Log what has just failed, and how many were suppressed; it does not last."""
        for sentence in sentences:
            self._problems.add(self._what, sentence, now_ns)
        self._problems.flush(now_ns)


class StrategyPart(ReportingPart, abc.ABC, Generic[D]):
    """One that serves one strategy: acts on its decisions, and logs what they cannot use.

    Args:
        what: as of `ReportingPart`.
        strategy: whose decisions are taken.
        kind: their type.
    """

    def __init__(self, what: str, strategy: Strategy[Any, Any, Any], kind: type[D]) -> None:
        super().__init__(what)
        self._strategy = strategy
        self._kind = kind

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """As `RoundPart.carry_out`."""
        made = decisions.get(self._strategy.name)
        problems = None
        if isinstance(made, self._kind) and made.skipped is None:
            problems = self.take(made, view.now_ns)
        self.report(problems, view.now_ns)

    @abc.abstractmethod
    def take(self, made: D, now_ns: int) -> Iterable[str]:
        """Act on the decision of a round that was judged; return sentences on what it cannot use."""
