"""BECPUSuppress as a strategy: what best-effort pods may have of the CPUs, as cgroup files."""

from __future__ import annotations

from koordebpf.policy.strategy import Decision, Strategy
from koordebpf.policy.suppress.round import SUPPRESS_GATE, SuppressPlan, plan_suppress
from koordebpf.policy.suppress.settings import SuppressSettings
from koordebpf.policy.suppress.wake import woken
from koordebpf.state.suppression import SuppressState
from koordebpf.state.view import NodeView


class SuppressDecision(Decision[SuppressState], frozen=True, kw_only=True):
    """The decision with the plan behind it."""

    plan: SuppressPlan


class BeCpuSuppress(Strategy[None, SuppressState, SuppressSettings]):
    """Koordinator's cpusuppress."""

    name = "suppress"
    gate = SUPPRESS_GATE
    summary = "hold best-effort pods to the CPU that others leave"
    is_on = True
    settings = SuppressSettings
    shared_section = "suppress"
    state = SuppressState
    decides_when_off = True  # what it wrote is then restored step by step
    needs_cpu = True

    def decide(
        self, view: NodeView, measured: None, state: SuppressState, settings: SuppressSettings
    ) -> SuppressDecision:
        """Return `plan_suppress` of this view; a round that a burst began says so."""
        plan = plan_suppress(view, state, settings)
        if plan.skipped is None and view.woken_by is not None:
            plan = woken(plan, view.woken_by, view.now_ns, settings)
        return SuppressDecision(
            state=plan.next,
            reason=plan.reason,
            skipped=plan.skipped,
            writes=plan.desired.writes,
            sysctls=plan.desired.sysctls,
            plan=plan,
        )


BE_CPU_SUPPRESS = BeCpuSuppress()
