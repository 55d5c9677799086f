"""Everything that is decided for one moment of a node: victims, and what each strategy wants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from koordebpf.decision.dead_man import PlannedDeadMan
from koordebpf.decision.decide_tick import TickSettings
from koordebpf.decision.strategies import OWN_STRATEGIES, StrategySettings, decide_strategies
from koordebpf.policy.decide import arbitrate
from koordebpf.policy.detect.stall_evict import stall_evict
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import Plan, PodAction
from koordebpf.policy.reconcile import CgroupWrite, SysctlWrite
from koordebpf.policy.strategy import GATE_OFF, Decision, Strategy
from koordebpf.state.balance import MemoryBalance, memory_balance
from koordebpf.state.guard_facts import ClosedGuard
from koordebpf.state.pods.namespaces import judged
from koordebpf.state.view import NodeView

_MOST_PODS = 100  # Why: a page for people, and what kubelet admits by default


class OtherDecision(msgspec.Struct, frozen=True):
    """What a strategy beside evictions decides; what it demands of pods is in the features.

    `pods` is what it does to pods beside cgroup files, in the order in which it decided, the first 100 of them;
    `more_pods` are left out. `problems`: what it cannot use. `explained`: an `Explanation` of the strategy's own type.
    """

    reason: str
    skipped: str | None = None
    writes: tuple[CgroupWrite, ...] = ()
    sysctls: tuple[SysctlWrite, ...] = ()
    conditions: tuple[str, ...] = ()
    pods: tuple[PodAction, ...] = ()
    more_pods: int = 0
    problems: tuple[str, ...] = ()
    explained: Any = msgspec.UNSET


class NodePlan(Plan, frozen=True, kw_only=True):
    """The plan with the stall net and other strategies beside the evictions: what `koordebpf plan` prints.

    `guards`: of a round of an agent, those that are closed and keep it from acting. `strategies`: the decisions of the
    others that decide, by name. `dead_man` None: deadMan.action is nothing. `memory`: where the memory in use is; None:
    the frame has no measurement of cgroups outside pods.
    """

    stall_net: Verdict  # StallEvict, judged whether its gate is on or not
    guards: tuple[ClosedGuard, ...] = ()
    strategies: Mapping[str, OtherDecision] = {}
    dead_man: PlannedDeadMan | None = None
    memory: MemoryBalance | None = None


def decide_node(
    view: NodeView,
    eviction: EvictSettings,
    strategies: StrategySettings = StrategySettings(),  # noqa: B008 - frozen
    states: Mapping[str, Any] | None = None,
) -> NodePlan:
    """Return all decisions for this view.

    `states` is what strategies remember, by name.
    """
    view = judged(view, eviction.exemptions)
    settings = TickSettings(eviction=eviction, strategies=strategies)
    decisions = decide_strategies(view, states or {}, settings, has_cpu=view.cpu is not None)
    plan = arbitrate(view, eviction, [each for made in decisions.values() for each in made.demands])
    stalls = stall_evict(view, eviction.stall.full_percent, eviction.stall.seconds, strict=eviction.strict_compat)
    shown = {
        each.name: _other(each, made, view)
        for each in OWN_STRATEGIES
        if (made := decisions.get(each.name)) is not None and made.skipped != GATE_OFF
    }
    memory = memory_balance(view.measured, view.used_bytes)
    return NodePlan(**msgspec.structs.asdict(plan), stall_net=stalls, strategies=shown, memory=memory)


def _other(strategy: Strategy[Any, Any, Any], made: Decision[Any], view: NodeView) -> OtherDecision:
    pods, explained = made.pod_actions(view), strategy.explained(made, view)
    return OtherDecision(
        made.reason,
        made.skipped,
        made.writes,
        made.sysctls,
        made.conditions,
        pods[:_MOST_PODS],
        max(len(pods) - _MOST_PODS, 0),
        getattr(made, "problems", ()),
        msgspec.UNSET if explained is None else explained,
    )
