"""What of the node's report is shown: the page /node-metric, a part of /readyz, and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from koordebpf.report.health_check import HealthCheck
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.act.node_metric import NodeMetricReporter
    from koordebpf.agent.colocation.reports.node_metric_job import NodeMetricJob
    from koordebpf.clock import Clock
    from koordebpf.report.beside import Beside, Families
    from koordebpf.report.prom.colocation.node_metric import NodeMetricNow

PAGE = "/node-metric"
_MAX_SILENCE_NS = 3600 * NS_PER_S  # a report that is too old is a problem of its own


class NodeMetricPage(msgspec.Struct, frozen=True):
    """The report as it is now. `problems`: why it is not what it should be. `status` is what was rendered last.

    `age_s` is that of the report that the API server has of this agent; None: none.
    """

    is_sent: bool
    held: str | None
    other_writer: str | None
    age_s: float | None
    problems: tuple[str, ...]
    policy: Any
    status: dict[str, Any] | None


class NodeMetricShown:
    """Looks at a job and its reporter from any thread.

    Args:
        job: renders.
        reporter: sends; None: a dry run.
        latest_ns: a report is never to be older.
        read_problems: why the NodeMetric cannot be read.
        clock: the node's.
    """

    def __init__(
        self,
        job: NodeMetricJob,
        reporter: NodeMetricReporter | None,
        latest_ns: int,
        read_problems: Callable[[], tuple[str, ...]],
        clock: Clock,
    ) -> None:
        self._job = job
        self._reporter = reporter
        self._latest_ns = latest_ns
        self._read_problems = read_problems
        self._clock = clock
        self._opened_ns = clock.now_ns()

    def show(self, beside: Beside, koordlet_node: str | None) -> None:
        """Put it where it is asked for; with the node's name, koordlet's metrics too."""
        beside.pages[PAGE] = lambda _: self.page()
        beside.checks[PAGE] = self.check
        beside.families[PAGE] = lambda: self.families(koordlet_node)

    def page(self) -> NodeMetricPage:
        """Return what the page shows."""
        reporter, job = self._reporter, self._job
        return NodeMetricPage(
            is_sent=reporter is not None,
            held=reporter.held if reporter else None,
            other_writer=(reporter.other_writer or None) if reporter else None,
            age_s=self._age_s(),
            problems=self._problems(),
            policy=job.policy,
            status=job.newest,
        )

    def check(self) -> HealthCheck:
        """Return whether the API server has a report that is new enough."""
        return HealthCheck("NodeMetric", "; ".join(self._problems()) or None, self._clock.now_ns(), _MAX_SILENCE_NS)

    def families(self, koordlet_node: str | None) -> Families:
        """Yield metrics; what koordlet calls them only with the node's name."""
        from koordebpf.report.prom.colocation.node_metric import sending_families, usage_families

        yield from sending_families(self._now())
        if koordlet_node is not None and (status := self._job.newest) is not None:
            yield from usage_families(koordlet_node, status)

    def _now(self) -> NodeMetricNow:
        from koordebpf.report.prom.colocation.node_metric import NodeMetricNow

        reporter = self._reporter
        if reporter is None:
            return NodeMetricNow()
        return NodeMetricNow(**msgspec.structs.asdict(reporter.counts), age_s=self._age_s(), held=reporter.held)

    def _age_s(self) -> float | None:
        sent_ns = self._reporter.sent_ns if self._reporter else None
        return None if sent_ns is None else (self._clock.now_ns() - sent_ns) / NS_PER_S

    def _problems(self) -> tuple[str, ...]:
        job, reporter = self._job, self._reporter
        found = [*self._read_problems(), *filter(None, (job.problem, job.unmeasured))]
        if reporter is None:
            return tuple(found)
        if reporter.problem is not None:
            found.append(reporter.problem)
        if reporter.held == "other":
            found.append(f"{reporter.other_writer} writes the NodeMetric of this node: it is left alone")
        elif reporter.held == "absent":
            found.append("there is no NodeMetric of this node")
        else:
            age_ns = self._clock.now_ns() - (self._opened_ns if reporter.sent_ns is None else reporter.sent_ns)
            if age_ns > self._latest_ns:
                found.append(f"no report for {age_ns / NS_PER_S:.0f} s > {self._latest_ns / NS_PER_S:.0f} s")
        return tuple(found)
