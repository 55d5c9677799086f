"""System configuration as a strategy, with koordlet's feature gate."""

from __future__ import annotations

from koordebpf.policy.strategy import Decision, Empty, Strategy
from koordebpf.policy.system.rules import system_writes
from koordebpf.policy.system.settings import SystemConfigSettings
from koordebpf.state.system.measured import SystemMeasured
from koordebpf.state.view import NodeView


class SystemDecision(Decision[Empty], frozen=True, kw_only=True):
    """The decision with sentences on fields of the NodeSLO that give nothing."""

    problems: tuple[str, ...] = ()


class SystemConfig(Strategy[SystemMeasured, Empty, SystemConfigSettings]):
    """Wants what the NodeSLO says; a field that is taken away has its file restored."""

    name = "systemConfig"
    gate = "SystemConfig"
    summary = "set the kernel's watermarks and scheduler features as NodeSLO says"
    measured = SystemMeasured
    settings = SystemConfigSettings
    state = Empty

    def decide(
        self, view: NodeView, measured: SystemMeasured | None, state: Empty, settings: SystemConfigSettings
    ) -> SystemDecision:
        """Return what files of the node are to hold.

        Skips:   not_known: the cluster has not been heard of; what was written before stays.
        """
        if measured is None:
            return SystemDecision(state=state, reason="the NodeSLO is not known yet", skipped="not_known")
        if view.measured.node.scope != "machine":
            return SystemDecision(state=state, reason="system configuration: the node is a cgroup of a larger machine")
        if measured.strategy is None:
            return SystemDecision(state=state, reason="system configuration: there is no NodeSLO")
        made = system_writes(measured.strategy, view.capacity_bytes, settings)
        reason = f"system configuration: spec.systemStrategy has {len(made.sysctls)} values for the kernel"
        return SystemDecision(state=state, reason=reason, sysctls=made.sysctls, problems=made.problems)


SYSTEM_CONFIG = SystemConfig()
