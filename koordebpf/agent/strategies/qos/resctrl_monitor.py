"""Monitoring of the cache and the memory bandwidth of QoS classes: `ResctrlCollector` of koordlet. It reads only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koordebpf.clock import Due
from koordebpf.policy.strategy import Decision
from koordebpf.report.prom.node import NodeMetrics
from koordebpf.runner.runner import Runner
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.runner.context import NodeContext

GATE = "ResctrlCollector"


class ResctrlMonitor(Runner):
    """Reads, when that is due. No strategy decides from it.

    Args:
        metrics: get what is read.
        root: where resctrl is mounted.
    """

    period_ns = 10 * NS_PER_S  # Why: koordlet's resctrl-collector-interval

    def __init__(self, metrics: NodeMetrics, root: Path) -> None:
        super().__init__("monitoring of resctrl")
        self._metrics = metrics
        self._root = root
        self._due = Due(self.period_ns)

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Read, when that is due."""
        if self._due.is_nearly_due(view.now_ns):
            from koordebpf.collect.resctrl.monitoring import read_monitoring

            self._due.done(view.now_ns)
            self._metrics.resctrl = read_monitoring(self._root)


def open_resctrl_monitor(node: NodeContext) -> ResctrlMonitor | None:
    """Return it; None: its gate is off."""
    if not node.config.feature_gates.get(GATE):
        return None
    from koordebpf.collect.resctrl.collector import RESCTRL

    return ResctrlMonitor(node.metrics.node, RESCTRL)
