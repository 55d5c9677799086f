"""One feature's round: verdict, pending releases, what earlier features take, ranking, victims."""

from __future__ import annotations

from msgspec.structs import replace

from koordebpf.policy.credit import amount_text, credit_of
from koordebpf.policy.detect.verdict import USED, Verdict
from koordebpf.policy.evict.candidates.exemptions import not_honoured
from koordebpf.policy.evict.features import Feature
from koordebpf.policy.evict.grace import capped_grace_s
from koordebpf.policy.evict.pending import is_cooling, is_cooling_cpu, is_starting_cpu, pending_credit
from koordebpf.policy.evict.round import Round
from koordebpf.policy.evict.selection import Selection, select
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import Candidate, CpuAmounts, Excluded, FeaturePlan, Victim
from koordebpf.state.pods.exemptions import ExemptionSettings, is_honoured
from koordebpf.state.view import NodeView
from koordebpf.units import format_ns

# Koordinator's texts, spelled as in its Events.
EVICT_REASON = "evicted"

_NAMES = 2  # spelled out in a sentence


def evict_message(feature: str, pod_name: str) -> str:
    """Return the message Koordinator's Event carries for a victim."""
    return f"trigger by koordlet feature {feature}, kill pod: {pod_name}"


def plan_feature(current: Round, feature: Feature) -> FeaturePlan:
    """Return this feature's part of the plan, and count its victims for the features after it.

    What the victims of those before it release counts here too, once. No victims: the verdict does not fire, an
    eviction is cooling down, or what already leaves covers the need.

    Cost: 1 µs where the verdict does not fire; a round 2 µs a pod (measured at 1,000).
    """
    view, settings = current.view, current.settings
    verdict = feature.judge(view, settings)
    if not verdict.fires:
        return FeaturePlan(verdict, reason=verdict.reason)
    needs = verdict.amounts
    pending, leaving = pending_credit(view, settings, current.leaving, needs)
    held = _sized(FeaturePlan(verdict), verdict, need=sum(needs.values()), pending=sum(pending.values()))
    if (why := _why_waiting(verdict, view, settings)) is not None:
        return replace(held, reason=why)
    still_open = {resource: need - pending[resource] for resource, need in needs.items()}
    if not _is_short(still_open):
        names = ", ".join(leaving[:_NAMES]) + (", …" if len(leaving) > _NAMES else "")
        coming = amount_text(next(iter(needs)), sum(pending.values()))
        return replace(held, reason=f"{coming} is already coming back from {names}")
    shared = {resource: credit_of(current.victims, resource) for resource in still_open}
    held = _sized(held, verdict, shared=sum(shared.values()))
    still_open = {resource: need - shared[resource] for resource, need in still_open.items()}
    if not _is_short(still_open):
        return replace(held, reason="the victims of the features before it cover the need")

    if feature.is_one_by_one:
        if current.victims:
            return replace(held, reason="the victims of the features before it go first")
        still_open = dict.fromkeys(still_open, 1)  # as little as it takes to choose the first one

    candidates, excluded = feature.rank(current)
    selection = select(current, candidates, still_open)
    victims = selection.victims
    current.take(victims)
    credit = {resource: credit_of(victims, resource) for resource, need in still_open.items() if need > 0}
    missing = {resource: max(still_open[resource] - given, 0) for resource, given in credit.items()}
    return replace(
        _sized(held, verdict, credit=sum(credit.values()), missing=sum(missing.values())),
        victims=tuple([_victim(current, feature, each, is_for_use=USED in needs) for each in victims]),
        candidates=selection.ranking,
        excluded=(*excluded, *selection.passed_over),
        reason=_why_no_more(feature, selection, missing, verdict),
        not_honoured=_not_honoured(current, feature, selection),
    )


# Why nothing more is evicted for this resource yet; None: it may be.
def _why_waiting(verdict: Verdict, view: NodeView, settings: EvictSettings) -> str | None:
    if verdict.cpu_needs:
        if is_starting_cpu(view, settings):
            return f"the agent started less than {format_ns(settings.cpu_cool_time_ns)} ago"
        if is_cooling_cpu(view, settings):
            return f"the last eviction was less than {format_ns(settings.cpu_cool_time_ns)} ago"
    elif is_cooling(view, settings):
        if settings.strict_compat:
            return f"the last eviction was less than {format_ns(settings.cool_time_ns)} ago"
        return "what was evicted last has not released its memory yet"
    return None


def _victim(current: Round, feature: Feature, chosen: Candidate, *, is_for_use: bool) -> Victim:
    view, settings = current.view, current.settings
    return Victim(
        chosen,
        EVICT_REASON,
        evict_message(feature.name, chosen.name),
        is_for_use,
        not is_honoured(settings.exemptions.budgets, chosen.namespace, view),
        capped_grace_s(current.pods[chosen.uid], view, settings) if is_for_use else None,
    )


# The plan with these amounts, in the unit that its feature judges.
def _sized(plan: FeaturePlan, verdict: Verdict, **amounts: int) -> FeaturePlan:
    if verdict.cpu_needs:
        cpu = replace(plan.cpu or CpuAmounts(), **{f"{name}_millicpu": amount for name, amount in amounts.items()})
        return replace(plan, cpu=cpu)
    return replace(plan, **{f"{name}_bytes": amount for name, amount in amounts.items()})


def _not_honoured(current: Round, feature: Feature, selection: Selection) -> tuple[Excluded, ...]:
    exemptions = current.settings.exemptions
    if exemptions == ExemptionSettings():
        return ()
    return tuple(
        found
        for each in selection.ranking
        for found in not_honoured(current.pods[each.uid], each, feature.name, exemptions, current.view)
    )


def _is_short(still_open: dict[str, int]) -> bool:
    return any(need > 0 for need in still_open.values())


def _why_no_more(feature: Feature, selection: Selection, missing: dict[str, int], verdict: Verdict) -> str:
    what = "CPU" if verdict.cpu_needs else "memory"
    if not selection.ranking:
        return f"no {feature.whom} can be evicted"
    held = selection.passed_over
    if not selection.victims:
        return (
            f"{held[0].namespace}/{held[0].name} may not go: {held[0].why}"
            if held
            else f"no candidate would give {what} back"
        )
    short = {resource: amount for resource, amount in missing.items() if amount}
    if not short:
        return "the need is covered"
    amounts = " and ".join(
        amount_text(resource, amount) + (f" of {resource}" if len(verdict.amounts) > 1 else "")
        for resource, amount in short.items()
    )
    others = "who is left may not go now" if held else f"no other {feature.whom} would give {what} back"
    return f"{amounts} will be missing: {others}"
