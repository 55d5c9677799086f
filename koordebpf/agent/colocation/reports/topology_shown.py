"""What of the NodeResourceTopology is shown: the page /node-topology, a part of /readyz, and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from koordebpf.report.health_check import HealthCheck
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.act.topology import TopologyReporter
    from koordebpf.clock import Clock
    from koordebpf.collect.cluster_view import Known
    from koordebpf.policy.topology.report import Report
    from koordebpf.report.beside import Beside, Families

PAGE = "/node-topology"
_MAX_SILENCE_NS = 3600 * NS_PER_S  # nothing changes for days on a quiet node


class TopologyPage(msgspec.Struct, frozen=True):
    """The object as it is to be. `problems`: why it is not, or what of it could not be read."""

    is_sent: bool
    writes: int
    problems: tuple[str, ...]
    report: Report | None


class TopologyShown:
    """Looks at a reporter from any thread. `is_sent` False: a dry run."""

    def __init__(self, reporter: TopologyReporter, known: Known, clock: Clock, *, is_sent: bool) -> None:
        self._reporter = reporter
        self._known = known
        self._clock = clock
        self._is_sent = is_sent

    def show(self, beside: Beside, koordlet_node: str | None) -> None:
        """Put it where it is asked for; with the node's name, koordlet's metrics too."""
        beside.pages[PAGE] = lambda _: self.page()
        beside.checks[PAGE] = self.check
        beside.families[PAGE] = lambda: self.families(koordlet_node)

    def page(self) -> TopologyPage:
        """Return what the page shows."""
        reporter = self._reporter
        return TopologyPage(self._is_sent, reporter.writes, self._problems(), reporter.newest)

    def check(self) -> HealthCheck:
        """Return whether the object is as it is to be."""
        problem = "; ".join(self._problems()) or None
        return HealthCheck("NodeResourceTopology", problem, self._clock.now_ns(), _MAX_SILENCE_NS)

    def families(self, koordlet_node: str | None) -> Families:
        """Yield metrics; what koordlet calls them only with the node's name."""
        from koordebpf.report.prom.colocation.topology import allocatable_families, pool_families, topology_families

        reporter, node = self._reporter, self._known.node
        yield from topology_families(reporter.writes)
        if koordlet_node is None:
            return
        if reporter.newest is not None:
            yield from pool_families(koordlet_node, reporter.newest.pools)
        if node is not None:
            yield from allocatable_families(koordlet_node, node.status.allocatable or {})

    def _problems(self) -> tuple[str, ...]:
        reporter = self._reporter
        of_report = reporter.newest.problems if reporter.newest else ()
        return tuple(filter(None, (reporter.problem, reporter.left_to, *of_report)))
