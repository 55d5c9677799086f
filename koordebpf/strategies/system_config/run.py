"""SystemConfig in a running agent."""

from __future__ import annotations

from collections.abc import Iterable

from koordebpf.collect.cluster_view import ClusterView
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import StrategyRunner
from koordebpf.state.view import NodeView
from koordebpf.strategies.system_config.decide import SYSTEM_CONFIG, SystemDecision
from koordebpf.strategies.system_config.values import SystemMeasured


class SystemConfigRunner(StrategyRunner[SystemMeasured, SystemDecision]):
    """Logs what of the NodeSLO cannot be used; `known` is the cluster."""

    def __init__(self, known: ClusterView) -> None:
        super().__init__("system configuration", SYSTEM_CONFIG, SystemDecision, self._measured)
        self._known = known

    def _measured(self, _now_ns: int) -> SystemMeasured | None:
        if not self._known.is_whole:
            return None
        spec = self._known.spec
        return SystemMeasured(spec.systemStrategy if spec is not None else None)

    def act(self, made: SystemDecision, view: NodeView) -> Iterable[str]:
        """Return what of the NodeSLO cannot be used."""
        return made.problems


def open_runner(node: NodeContext) -> SystemConfigRunner:
    """Return it."""
    return SystemConfigRunner(node.measuring.known)
