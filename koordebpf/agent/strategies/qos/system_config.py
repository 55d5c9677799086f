"""System configuration in the agent: takes the NodeSLO's part into the measurement, and reports what it cannot use.

The files are written as those of any other strategy, by `OwnStrategies`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from koordebpf.agent.strategies.part import StrategyPart
from koordebpf.collect.cluster_view import Known
from koordebpf.policy.system.strategy import SYSTEM_CONFIG, SystemDecision
from koordebpf.state.measured import Measured
from koordebpf.state.system.measured import SystemMeasured

if TYPE_CHECKING:
    from koordebpf.agent.context import NodeContext


class SystemConfigPart(StrategyPart[SystemDecision]):
    """The part of a round; `known` is the cluster."""

    def __init__(self, known: Known) -> None:
        super().__init__("system configuration", SYSTEM_CONFIG, SystemDecision)
        self._known = known

    def measure(self, measured: Measured, *, is_sample: bool) -> Measured:
        """As `RoundPart.measure`."""
        if is_sample or not self._known.is_whole:
            return measured
        spec = self._known.spec
        found = SystemMeasured(spec.systemStrategy if spec is not None else None)
        return measured.with_part(SYSTEM_CONFIG.part, found)

    def take(self, made: SystemDecision, now_ns: int) -> Iterable[str]:
        """Return what of the NodeSLO cannot be used."""
        return made.problems


def open_system_config(node: NodeContext) -> SystemConfigPart | None:
    """Return it; None: its gate is off."""
    if not node.config.feature_gates.get(SYSTEM_CONFIG.gate):
        return None
    return SystemConfigPart(node.measuring.known)
