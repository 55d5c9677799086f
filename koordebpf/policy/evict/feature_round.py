"""The arbiter's part for one demand: verdict, pending releases, what earlier features take, ranking, victims."""

from __future__ import annotations

from msgspec.structs import replace

from koordebpf.policy.credit import credit_of
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.evict.exemptions import not_honoured
from koordebpf.policy.evict.pending import pending_credit, unanswered
from koordebpf.policy.evict.round import Round
from koordebpf.policy.evict.selection import Selection, select
from koordebpf.policy.evict.settings import capped_grace_s
from koordebpf.policy.plan import Balance, Candidate, Excluded, FeaturePlan, Victim
from koordebpf.policy.strategy import Demand
from koordebpf.state.amount import USED, Dimension, unit_of
from koordebpf.state.pods.namespaces import ExemptionSettings, is_honoured

# Koordinator's texts, spelled as in its Events.
EVICT_REASON = "evicted"

_NAMES = 2  # spelled out in a sentence
# Why: as of a released pod, where an eighth that is left counts as nothing (`still_pending`).
_WORTH_SHARE = 8


def evict_message(feature: str, pod_name: str) -> str:
    """Return the message Koordinator's Event carries for a victim."""
    return f"trigger by koordlet feature {feature}, kill pod: {pod_name}"


def plan_demand(current: Round, demand: Demand) -> FeaturePlan:
    """Return this demand's part of the plan, and count its victims for the demands after it.

    What the victims of those before it release counts here too, once. No victims: the verdict does not fire, an
    eviction is cooling down, or what already leaves covers the need.

    Cost: 1 µs where the verdict does not fire; a round 2 µs a pod (measured at 1,000).
    """
    view, settings, relief = current.view, current.settings, demand.relief
    verdict = demand.verdict
    balance = Balance(relief.resource)
    if not verdict.fires:
        return FeaturePlan(verdict, balance, reason=verdict.reason)
    needs = verdict.amounts
    going, victims = current.leaving, current.victims
    if relief.counts_killed and view.killed:
        going, victims = current.leaving_or_killed, [each for each in victims if each.uid not in view.killed]
    pending, leaving = pending_credit(view, settings, going, needs, relief.credit, relief.stray_credit)
    balance = replace(balance, need=sum(needs.values()), pending=sum(pending.values()))
    held = FeaturePlan(verdict, balance)
    if (why := relief.why_waiting(view, settings)) is not None:
        return replace(held, reason=why)
    still_open = {each: need - pending[each] for each, need in needs.items()}
    if not _is_short(still_open):
        names = ", ".join(leaving[:_NAMES]) + (", …" if len(leaving) > _NAMES else "")
        return replace(held, reason=f"{balance.text(balance.pending)} is already coming back from {names}")
    shared = {each: credit_of(victims, each) for each in still_open}
    balance = replace(balance, shared=sum(shared.values()))
    held = replace(held, balance=balance)
    still_open = {each: need - shared[each] for each, need in still_open.items()}
    if not _is_short(still_open):
        return replace(held, reason="the victims of the features before it cover the need")

    if demand.is_one_by_one:
        if current.victims:
            return replace(held, reason="the victims of the features before it go first")
        still_open = dict.fromkeys(still_open, 1)  # as little as it takes to choose the first one

    candidates, excluded = demand.rank(current)
    selection = select(current, candidates, still_open)
    chosen = selection.victims
    credit = {each: credit_of(chosen, each) for each, need in still_open.items() if need > 0}
    if chosen and (awaited := _awaited_instead(current, demand, still_open, credit)):
        why = f"{awaited} has not been answered yet, and without it too little {relief.resource} would come back"
        return replace(held, candidates=selection.ranking, excluded=excluded, reason=f"the eviction of {why}")
    current.count_victims(chosen)
    missing = {each: max(still_open[each] - given, 0) for each, given in credit.items()}
    return replace(
        held,
        balance=replace(balance, credit=sum(credit.values()), missing=sum(missing.values())),
        victims=tuple([_victim(current, demand, each, is_for_use=USED in needs) for each in chosen]),
        candidates=selection.ranking,
        excluded=(*excluded, *selection.passed_over),
        reason=_why_no_more(demand, selection, missing, verdict),
        not_honoured=_not_honoured(current, demand, selection),
    )


# The pods whose unanswered evictions cover the need where the victims would release next to nothing of it; "": none.
def _awaited_instead(
    current: Round, demand: Demand, still_open: dict[Dimension, int], credit: dict[Dimension, int]
) -> str:
    if any(given * _WORTH_SHARE >= still_open[each] for each, given in credit.items()):
        return ""
    barred = current.barred
    pods = [pod for pod in unanswered(current.view, current.settings) if pod.uid not in barred]
    if not pods or any(sum(demand.relief.credit(pod, each) for pod in pods) < still_open[each] for each in credit):
        return ""
    return ", ".join(pod.key for pod in pods[:_NAMES]) + (", …" if len(pods) > _NAMES else "")


def _victim(current: Round, demand: Demand, chosen: Candidate, *, is_for_use: bool) -> Victim:
    view, settings, is_forced = current.view, current.settings, demand.mode == "force"
    return Victim(
        chosen,
        EVICT_REASON,
        demand.reasons.get(chosen.uid) or evict_message(demand.verdict.feature, chosen.name),
        is_for_use,
        is_forced and not is_honoured(settings.exemptions.budgets, chosen.namespace, view),
        demand.grace_s.get(
            chosen.uid, capped_grace_s(current.pods[chosen.uid], view, settings) if is_forced and is_for_use else None
        ),
        demand.killers.get(chosen.uid),
    )


def _not_honoured(current: Round, demand: Demand, selection: Selection) -> tuple[Excluded, ...]:
    exemptions = current.settings.exemptions
    if exemptions == ExemptionSettings():
        return ()
    return tuple(
        found
        for each in selection.ranking
        for found in not_honoured(current.pods[each.uid], each, demand.verdict.feature, exemptions, current.view)
    )


def _is_short(still_open: dict[Dimension, int]) -> bool:
    return any(need > 0 for need in still_open.values())


def _why_no_more(demand: Demand, selection: Selection, missing: dict[Dimension, int], verdict: Verdict) -> str:
    what = demand.relief.resource
    if not selection.ranking:
        return f"no {demand.whom} can be evicted"
    held = selection.passed_over
    if not selection.victims:
        return (
            f"{held[0].namespace}/{held[0].name} may not go: {held[0].why}"
            if held
            else f"no candidate would give {what} back"
        )
    short = {each: amount for each, amount in missing.items() if amount}
    if not short:
        return "the need is covered"
    amounts = " and ".join(
        unit_of(each.resource).format(amount) + (f" of {each.name}" if len(verdict.needs) > 1 else "")
        for each, amount in short.items()
    )
    others = "who is left may not go now" if held else f"no other {demand.whom} would give {what} back"
    return f"{amounts} will be missing: {others}"
