"""System configuration in the agent: takes the NodeSLO's part into the measurement, and reports what it cannot use.

The files are written as those of any other strategy, by `OwnStrategies`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from koordebpf.collect.cluster_view import Known
from koordebpf.policy.system.strategy import SYSTEM_CONFIG, SystemDecision
from koordebpf.runner.runner import StrategyRunner
from koordebpf.state.system.measured import SystemMeasured
from koordebpf.state.view import NodeView

if TYPE_CHECKING:
    from koordebpf.runner.context import NodeContext


class SystemConfigRunner(StrategyRunner[SystemMeasured, SystemDecision]):
    """Logs what of the NodeSLO cannot be used; `known` is the cluster."""

    def __init__(self, known: Known) -> None:
        super().__init__("system configuration", SYSTEM_CONFIG, SystemDecision, self._measured)
        self._known = known

    def _measured(self, _now_ns: int) -> SystemMeasured | None:
        if not self._known.is_whole:
            return None
        spec = self._known.spec
        return SystemMeasured(spec.systemStrategy if spec is not None else None)

    def take(self, made: SystemDecision, view: NodeView) -> Iterable[str]:
        """Return what of the NodeSLO cannot be used."""
        return made.problems


def open_system_config(node: NodeContext) -> SystemConfigRunner | None:
    """Return it; None: its gate is off."""
    if not node.config.feature_gates.get(SYSTEM_CONFIG.gate):
        return None
    return SystemConfigRunner(node.measuring.known)
