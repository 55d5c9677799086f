"""All features of one round, and the sentence that says what comes of it."""

from __future__ import annotations

from koordebpf.decide.evict.be_memory import plan_be_memory_evict
from koordebpf.decide.evict.settings import EvictSettings
from koordebpf.decide.plan import Candidate, FeaturePlan, Plan
from koordebpf.state.view import NodeView
from koordebpf.units import format_bytes

_NAMES = 3  # victims spelled out in the sentence


def decide(view: NodeView, settings: EvictSettings = EvictSettings()) -> Plan:  # noqa: B008 - frozen
    """Return what is to be done for this view, and why not the rest. The same view gives the same plan."""
    feature = plan_be_memory_evict(view, settings)
    return Plan(now_ns=view.now_ns, features=(feature,), sentence=_sentence(feature))


def _sentence(plan: FeaturePlan) -> str:
    if not plan.victims:
        why = plan.verdict.reason if plan.reason == plan.verdict.reason else f"{plan.verdict.reason}, but {plan.reason}"
        return f"no action: {why}"
    who = ", ".join(_named(victim.candidate) for victim in plan.victims[:_NAMES])
    if len(plan.victims) > _NAMES:
        who += f" and {len(plan.victims) - _NAMES} more"
    pending = f", {format_bytes(plan.pending_bytes)} already coming back" if plan.pending_bytes else ""
    missing = f"; {plan.reason}" if plan.missing_bytes else ""
    return f"evicting {who}: {plan.verdict.reason}{pending}{missing}"


def _named(candidate: Candidate) -> str:
    priority = "no priority" if candidate.priority is None else f"priority {candidate.priority}"
    return f"{candidate.namespace}/{candidate.name} ({priority}, {format_bytes(candidate.credit_bytes)})"
