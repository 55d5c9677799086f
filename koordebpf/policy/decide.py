"""The arbiter: the victims of all demands of one round, and the sentence that says what comes of it."""

from __future__ import annotations

from collections.abc import Sequence

from koordebpf.policy.evict.all_features import FEATURES
from koordebpf.policy.evict.exemptions import undecided_namespaces
from koordebpf.policy.evict.feature_round import plan_demand
from koordebpf.policy.evict.features import Feature
from koordebpf.policy.evict.recurring import COMES_BACK, is_of_daemon_set
from koordebpf.policy.evict.resources import Relief
from koordebpf.policy.evict.round import Round
from koordebpf.policy.evict.selection import PASSED_OVER
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.ladder.rungs import rung_plans
from koordebpf.policy.plan import Candidate, FeaturePlan, Plan
from koordebpf.policy.strategy import Demand, Empty
from koordebpf.state.pods.namespaces import judged
from koordebpf.state.view import NodeView

_NO_EFFECT = frozenset({"no_effect", "comes_back"})
_NAMES = 3  # victims spelled out in the sentence


def decide(
    view: NodeView,
    settings: EvictSettings = EvictSettings(),  # noqa: B008 - frozen
    features: Sequence[Feature] = FEATURES,
) -> Plan:
    """Return which pods are to be evicted for this view, and why not the rest. The same view gives the same plan.

    The plan holds BEMemoryEvict and every other feature whose gate is on, in Koordinator's order.
    """
    view = judged(view, settings.exemptions)
    asked = (each for each in features if each.is_asked(view.feature_gates))
    return arbitrate(view, settings, [d for each in asked for d in each.decide(view, None, Empty(), settings).demands])


def arbitrate(view: NodeView, settings: EvictSettings, demands: Sequence[Demand]) -> Plan:
    """Return the victims of all demands: a pod counts once, and each demand counts what those before it release.

    Forced demands come first, each kind in the order in which the strategies are asked; budgets and
    PodDisruptionBudgets hold for all of them together.

    Args:
        view: the node, as `judged` returned it.
        settings: of eviction rounds.
        demands: of all strategies, in their order.
    """
    ordered = sorted(demands, key=lambda demand: demand.mode != "force")
    reliefs = (*(feature.relief for feature in FEATURES), *(demand.relief for demand in ordered))
    current = Round(view, settings, dict.fromkeys(reliefs))
    plans = [plan_demand(current, demand) for demand in ordered]
    return Plan(
        now_ns=view.now_ns,
        features=tuple(plans),
        sentence=_sentence(plans, [demand.relief for demand in ordered]),
        ladder=rung_plans(view, plans, settings.ladder),
        undecided_namespaces=undecided_namespaces(view, settings.exemptions),
    )


def _sentence(plans: list[FeaturePlan], reliefs: list[Relief]) -> str:
    acting = [_acting(plan, relief) for plan, relief in zip(plans, reliefs, strict=True) if plan.victims]
    if acting:
        return "; ".join(acting)
    # A feature that is off says nothing where another one is on.
    judged = [plan for plan in plans if plan.verdict.skipped is None] or plans[:1]
    return f"no action: {'; '.join(dict.fromkeys(_idle(plan) for plan in judged))}"


def _idle(plan: FeaturePlan) -> str:
    if plan.reason == plan.verdict.reason:
        return plan.verdict.reason
    return f"{plan.verdict.reason}, but {plan.reason}{_passed_over(plan, _NO_EFFECT)}"


def _acting(plan: FeaturePlan, relief: Relief) -> str:
    balance = plan.balance
    who = ", ".join(_named(victim.candidate, plan, relief) for victim in plan.victims[:_NAMES])
    if len(plan.victims) > _NAMES:
        who += f" and {len(plan.victims) - _NAMES} more"
    pending = f", {balance.text(balance.pending)} already coming back" if balance.pending else ""
    missing = f"; {plan.reason}" if balance.missing else ""
    return f"evicting {who}: {plan.verdict.reason}{pending}{missing}{_passed_over(plan)}"


# Who would have gone and may not now: a reader of the ranking would look for it.
def _passed_over(plan: FeaturePlan, codes: frozenset[str] = PASSED_OVER | _NO_EFFECT) -> str:
    held = [each for each in plan.excluded if each.code in codes]
    if not held:
        return ""
    more = f" and {len(held) - 1} more" if len(held) > 1 else ""
    return f"; passed over {held[0].namespace}/{held[0].name} ({held[0].why}){more}"


def _named(candidate: Candidate, plan: FeaturePlan, relief: Relief) -> str:
    priority = "no priority" if candidate.priority is None else f"priority {candidate.priority}"
    gives = relief.gives(candidate, plan.verdict.amounts)
    again = f"; {COMES_BACK}" if is_of_daemon_set(candidate.workload) else ""
    return f"{candidate.namespace}/{candidate.name} ({priority}, {gives}{again})"
