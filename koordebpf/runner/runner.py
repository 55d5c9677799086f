"""What a strategy does in a running agent apart from deciding: it measures, acts, and shows what it did.

What it wants of cgroup files is in its decision, and `OwnStrategies` writes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec.structs import replace
from prometheus_client.core import Metric

from koordebpf.errors import KoordebpfError
from koordebpf.policy.strategy import Decision, Strategy
from koordebpf.report.job_pages import HealthCheck
from koordebpf.report.log_sink import ProblemLog
from koordebpf.report.pod_settings import PodLines
from koordebpf.state.measured import Measured, NodeMeasure
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.view import NodeView
from koordebpf.store.sink import Sink

log = logging.getLogger(__name__)

_NOTHING = Measured(0, 0, NodeMeasure("machine", 0, None))
M = TypeVar("M")
D = TypeVar("D", bound=Decision[Any])


class Runner:
    """One of them; each method has a default that does nothing. Nothing of it waits.

    `what`       it is about, in the log: "block IO".
    `needs_cpu`  a round that it asks for measures the CPUs, too.
    `writes`     the strategy whose cgroup files it writes itself, by name; None: `OwnStrategies` writes them.
    `states`     what strategies remember, by name, where it keeps that for them.
    `sink`       takes events of the agent for it; None: it needs none.
    """

    needs_cpu = False
    writes: str | None = None
    sink: Sink | None = None

    def __init__(self, what: str) -> None:
        self.what = what
        self.states: dict[str, Any] = {}
        self._problems = ProblemLog()

    def poll_due(self, now_ns: int) -> bool:
        """Tell whether a round is to be made before its time; once for each reason."""
        return False

    def due_ns(self, now_ns: int) -> int | None:
        """Return when it is to be asked again at the latest; None: with the next tick, whenever that is."""
        return None

    def threshold_bytes(self) -> int | None:
        """Return the use of memory from which no round waits for its time; None: it knows of none."""
        return None

    def shmem_uids(self, facts: Sequence[PodFacts], now_ns: int) -> Iterable[str]:
        """Return the pods of which it has to know now how much of their memory is shmem."""
        return ()

    def measure(self, measured: Measured, *, is_sample: bool) -> Measured:
        """Return the measurement with this one's own part; as it is where that could not be made.

        `is_sample`: memory is short, and a round has no time for anything else.
        """
        return measured

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Act on the decisions of a round, by strategy; what skipped the round keeps what it has."""

    def families(self) -> Iterable[Metric]:
        """Return its metrics; from any thread."""
        return ()

    def checks(self) -> Sequence[HealthCheck]:
        """Return its parts as /readyz shows them, which does not depend on them; from any thread."""
        return ()

    def explain(self) -> Mapping[str, PodLines]:
        """Return what it wanted of pods in the last round that it was asked in, by UID; from any thread."""
        return {}

    def close(self) -> None:
        """Put back what is not in cgroup files, and release what is open."""

    def report(self, problems: Iterable[str] | None, now_ns: int) -> None:
        """Log those of all problems of a round that are new, and how many were suppressed.

        None: the strategy skipped the round, and what was wrong before still is.
        """
        if problems is not None:
            self._problems.report({self.what: problems}, now_ns)
        self._problems.flush(now_ns)

    def report_failures(self, sentences: Iterable[str], now_ns: int) -> None:
        """Log what has just failed, and how many were suppressed; it does not last."""
        for sentence in sentences:
            self._problems.add(self.what, sentence, now_ns)
        self._problems.flush(now_ns)


class StrategyRunner(Runner, Generic[M, D]):
    """One that serves one strategy.

    Args:
        what: as of `Runner`.
        strategy: whose decisions are carried out.
        kind: their type.
        measure: returns what the strategy decides from, at a time (CLOCK_MONOTONIC ns); None: it is not due.
    """

    def __init__(
        self, what: str, strategy: Strategy[M, Any, Any], kind: type[D], measure: Callable[[int], M | None]
    ) -> None:
        super().__init__(what)
        self._strategy = strategy
        self._kind = kind
        self._measure = measure
        self._failed = ""
        self._last: tuple[M, D, NodeView] | None = None

    def measure(self, measured: Measured, *, is_sample: bool) -> Measured:
        """As `Runner.measure`; an error leaves the round without it, and is logged once."""
        if is_sample:
            return measured
        try:
            found = self._measure(measured.now_ns)
        except KoordebpfError as error:
            if str(error) != self._failed:
                log.warning("%s was not measured for: %s", self.what, error)
            self._failed = str(error)
            return measured
        self._failed = ""
        return measured.with_part(self._strategy.part, found)

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """As `Runner.carry_out`: takes a decision of a round that was judged, and logs what it cannot use."""
        made = self.decided(decisions, view)
        self.report(None if made is None or made.skipped is not None else self.act(made, view), view.now_ns)

    def decided(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> D | None:
        """Return the strategy's decision of a round, and let `explain` show it; None: its gate was off."""
        made = decisions.get(self._strategy.name)
        if not isinstance(made, self._kind):
            return None
        self.remember(made, view)
        return made

    def remember(self, made: D, view: NodeView) -> None:
        """Let `explain` show a decision, if it was made on a measurement."""
        if (measured := self._strategy.measured_of(view)) is not None:
            # Of what was measured its own part alone is kept: of 110 pods the rest is some 200 kB.
            frame = replace(view.frame, measured=_NOTHING)
            self._last = measured, made, replace(view, frame=frame, pods=(), cpu=None)

    def act(self, made: D, view: NodeView) -> Iterable[str]:
        """Act on the decision of a round that was judged; return sentences on what it cannot use."""
        return ()

    def explain(self) -> Mapping[str, PodLines]:
        """As `Runner.explain`."""
        return {} if (last := self._last) is None else self.lines(*last)

    def lines(self, measured: M, made: D, view: NodeView) -> Mapping[str, PodLines]:
        """Return what a decision wants of pods, by UID; of `view` there are the objects alone."""
        return {}
