"""System configuration in the agent: takes the NodeSLO's part into the measurement, and reports what it cannot use.

The files are written as those of any other strategy, by `OwnStrategies`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from koordebpf.agent.strategies.part import ReportingPart
from koordebpf.collect.cluster_view import Known
from koordebpf.policy.strategy import Decision
from koordebpf.policy.system.strategy import SYSTEM_CONFIG, SystemDecision
from koordebpf.state.measured import Measured
from koordebpf.state.system.measured import SystemMeasured
from koordebpf.state.view import NodeView

if TYPE_CHECKING:
    from koordebpf.agent.strategies.round_parts import OpenWith


class SystemConfigPart(ReportingPart):
    """The part of a round; `known` is the cluster."""

    def __init__(self, known: Known) -> None:
        super().__init__("system configuration")
        self._known = known

    def measure(self, measured: Measured, *, is_sample: bool) -> Measured:
        """As `RoundPart.measure`."""
        if is_sample or not self._known.is_whole:
            return measured
        spec = self._known.spec
        return replace(measured, system=SystemMeasured(spec.systemStrategy if spec is not None else None))

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Report what of the NodeSLO cannot be used."""
        made = decisions.get(SYSTEM_CONFIG.name)
        if isinstance(made, SystemDecision) and made.skipped is None:
            self.report(made.problems, view.now_ns)
        else:
            self.report(None, view.now_ns)


def open_system_config(given: OpenWith) -> SystemConfigPart | None:
    """Return it; None: its gate is off."""
    if not given.config.feature_gates.get(SYSTEM_CONFIG.gate):
        return None
    return SystemConfigPart(given.measuring.known)
