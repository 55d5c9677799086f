"""Everything that is decided for one moment of a node: victims, and the CPUs that best-effort pods keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from koordebpf.decision.dead_man import PlannedDeadMan
from koordebpf.decision.strategies import OWN_STRATEGIES, StrategySettings, decide_strategies
from koordebpf.decision.tick_frame import TickSettings
from koordebpf.policy.decide import arbitrate
from koordebpf.policy.detect.stall_evict import stall_evict
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.guards.closed import ClosedGuard
from koordebpf.policy.plan import Plan, PodAction
from koordebpf.policy.reconcile.values import CgroupWrite, SysctlWrite
from koordebpf.policy.strategy import GATE_OFF, Decision
from koordebpf.policy.suppress.explained import ExplainedSuppression, explained_suppression
from koordebpf.policy.suppress.settings import SuppressSettings
from koordebpf.state.pods.exemptions import judged
from koordebpf.state.suppression import SuppressState
from koordebpf.state.view import NodeView

_MOST_PODS = 100  # Why: a page for people, and what kubelet admits by default


class OtherDecision(msgspec.Struct, frozen=True):
    """What a strategy beside evictions and suppression decides; what it demands of pods is in the features.

    `pods` is what it does to pods beside cgroup files, in the order in which it decided, the first 100 of them;
    `more_pods` are left out. `problems`: what it cannot use.
    """

    reason: str
    skipped: str | None = None
    writes: tuple[CgroupWrite, ...] = ()
    sysctls: tuple[SysctlWrite, ...] = ()
    conditions: tuple[str, ...] = ()
    pods: tuple[PodAction, ...] = ()
    more_pods: int = 0
    problems: tuple[str, ...] = ()


class NodePlan(Plan, frozen=True, kw_only=True):
    """The plan with suppression and the stall net beside the evictions: what `koordebpf plan` prints.

    `guards`: of a round of an agent, those that are closed and keep it from acting. `strategies`: the decisions of the
    others whose gate is on, by name. `dead_man` None: deadMan.action is nothing.
    """

    suppression: ExplainedSuppression
    stall_net: Verdict  # StallEvict, judged whether its gate is on or not
    guards: tuple[ClosedGuard, ...] = ()
    strategies: Mapping[str, OtherDecision] = {}
    dead_man: PlannedDeadMan | None = None


def decide_node(
    view: NodeView,
    eviction: EvictSettings,
    suppress: SuppressSettings,
    strategies: StrategySettings = StrategySettings(),  # noqa: B008 - frozen
    states: Mapping[str, Any] | None = None,
) -> NodePlan:
    """Return all decisions for this view; evictions and suppression do not know of each other, as in the agent.

    `states` is what the other strategies remember, by name.
    """
    view = judged(view, eviction.exemptions)
    settings = TickSettings(eviction=eviction, suppress=suppress, strategies=strategies)
    decisions = decide_strategies(view, states or {}, settings, has_cpu=view.cpu is not None)
    plan = arbitrate(view, eviction, [each for made in decisions.values() for each in made.demands])
    suppression = explained_suppression(view, suppress, view.frame.suppression or SuppressState())
    stalls = stall_evict(view, eviction.stall.full_percent, eviction.stall.seconds, strict=eviction.strict_compat)
    shown = {
        each.name: _other(made, view)
        for each in OWN_STRATEGIES
        if (made := decisions.get(each.name)) is not None and made.skipped != GATE_OFF
    }
    return NodePlan(**msgspec.structs.asdict(plan), suppression=suppression, stall_net=stalls, strategies=shown)


def _other(made: Decision[Any], view: NodeView) -> OtherDecision:
    pods = made.pod_actions(view)
    return OtherDecision(
        made.reason,
        made.skipped,
        made.writes,
        made.sysctls,
        made.conditions,
        pods[:_MOST_PODS],
        max(len(pods) - _MOST_PODS, 0),
        getattr(made, "problems", ()),
    )
