"""All features of one round, and the sentence that says what comes of it."""

from __future__ import annotations

from koordebpf.policy.credit import amount_text, candidate_credit
from koordebpf.policy.detect import be_memory_evict
from koordebpf.policy.evict.candidates.exemptions import undecided_namespaces
from koordebpf.policy.evict.cpu_features import CPU_FEATURES
from koordebpf.policy.evict.feature_round import plan_feature
from koordebpf.policy.evict.features import MEMORY_FEATURES
from koordebpf.policy.evict.round import Round
from koordebpf.policy.evict.selection import PASSED_OVER
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.ladder.rungs import rung_plans
from koordebpf.policy.plan import Candidate, FeaturePlan, Plan
from koordebpf.state.pods.exemptions import judged
from koordebpf.state.view import NodeView, is_mostly_kernel
from koordebpf.units import format_bytes

_NO_EFFECT = frozenset({"no_effect"})
_NAMES = 3  # victims spelled out in the sentence


def decide(view: NodeView, settings: EvictSettings = EvictSettings()) -> Plan:  # noqa: B008 - frozen
    """Return what is to be done for this view, and why not the rest. The same view gives the same plan.

    The plan holds BEMemoryEvict and every other feature whose gate is on, in Koordinator's order; each counts what the
    ones before it give back.
    """
    view = judged(view, settings.exemptions)
    current = Round(view, settings)
    plans = [
        plan_feature(current, feature)
        for feature in (*MEMORY_FEATURES, *CPU_FEATURES)
        if feature.name == be_memory_evict.FEATURE or view.feature_gates.get(feature.name, False)
    ]
    return Plan(
        now_ns=view.now_ns,
        features=tuple(plans),
        sentence=_sentence(plans),
        ladder=rung_plans(view, plans, settings.ladder),
        undecided_namespaces=undecided_namespaces(view, settings.exemptions),
    )


def _sentence(plans: list[FeaturePlan]) -> str:
    acting = [plan for plan in plans if plan.victims]
    if acting:
        return "; ".join(_acting(plan) for plan in acting)
    # A feature that is off says nothing where another one is on.
    judged = [plan for plan in plans if plan.verdict.skipped is None] or plans[:1]
    return f"no action: {'; '.join(dict.fromkeys(_idle(plan) for plan in judged))}"


def _idle(plan: FeaturePlan) -> str:
    if plan.reason == plan.verdict.reason:
        return plan.verdict.reason
    return f"{plan.verdict.reason}, but {plan.reason}{_passed_over(plan, _NO_EFFECT)}"


def _acting(plan: FeaturePlan) -> str:
    who = ", ".join(_named(victim.candidate, plan) for victim in plan.victims[:_NAMES])
    if len(plan.victims) > _NAMES:
        who += f" and {len(plan.victims) - _NAMES} more"
    resource = next(iter(plan.verdict.amounts))
    coming = plan.cpu.pending_millicpu if plan.cpu else plan.pending_bytes
    pending = f", {amount_text(resource, coming)} already coming back" if coming else ""
    missing = f"; {plan.reason}" if (plan.cpu.missing_millicpu if plan.cpu else plan.missing_bytes) else ""
    return f"evicting {who}: {plan.verdict.reason}{pending}{missing}{_passed_over(plan)}"


# Who would have gone and may not now: a reader of the ranking would look for it.
def _passed_over(plan: FeaturePlan, codes: frozenset[str] = PASSED_OVER | _NO_EFFECT) -> str:
    held = [each for each in plan.excluded if each.code in codes]
    if not held:
        return ""
    more = f" and {len(held) - 1} more" if len(held) > 1 else ""
    return f"; passed over {held[0].namespace}/{held[0].name} ({held[0].why}){more}"


def _named(candidate: Candidate, plan: FeaturePlan) -> str:
    priority = "no priority" if candidate.priority is None else f"priority {candidate.priority}"
    gives = format_bytes(candidate.credit_bytes)
    if plan.cpu is not None:
        credit = {resource: candidate_credit(candidate, resource) for resource in plan.verdict.amounts}
        gives = " and ".join(amount_text(resource, amount) for resource, amount in credit.items() if amount)
    elif is_mostly_kernel(candidate.kernel_bytes, candidate.credit_bytes):
        gives += f", {format_bytes(candidate.kernel_bytes or 0)} of it kernel memory"
    return f"{candidate.namespace}/{candidate.name} ({priority}, {gives})"
