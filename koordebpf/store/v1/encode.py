"""Plans and audit records to their JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from koordebpf.decision.dead_man import PlannedDeadMan
from koordebpf.decision.decide_tick import TickDecision
from koordebpf.decision.node_plan import NodePlan
from koordebpf.policy.detect.verdict import Need, UseEvidence, Verdict
from koordebpf.policy.plan import Balance, Candidate, FeaturePlan, Holding, Plan, Victim
from koordebpf.state.amount import BE_REQUESTED_CPU, CPU, MEMORY
from koordebpf.state.pods.requests import NATIVE_CPU, NATIVE_MEMORY
from koordebpf.store.audit_record import AuditedFeature, AuditRecord
from koordebpf.store.v1 import types as v1

_WITH_KEYS = (MEMORY, CPU)  # that have keys of their own
_UNSET = msgspec.UNSET


def encode_plan(plan: Plan) -> bytes:
    """Return the plan as JSON that `decode_plan` reads back to an equal value."""
    return msgspec.json.encode(plan_json(plan))


def plan_json(plan: Plan) -> v1.Plan:
    """Return a plan as its JSON has it."""
    features = tuple(map(_feature, plan.features))
    return v1.Plan(plan.now_ns, features, plan.sentence, plan.ladder, plan.undecided_namespaces)


def node_plan_json(plan: NodePlan) -> v1.NodePlan:
    """Return what `koordebpf plan --json` prints."""
    return v1.NodePlan(
        **msgspec.structs.asdict(plan_json(plan)),
        suppression=plan.suppression,
        stall_net=verdict_json(plan.stall_net),
        guards=plan.guards or _UNSET,
        strategies=plan.strategies or _UNSET,
        dead_man=_UNSET if plan.dead_man is None else _dead_man(plan.dead_man),
    )


def encode_decision(decision: TickDecision) -> bytes:
    """Return what one round decided as JSON; equal decisions give equal bytes."""
    carried = decision.carried
    said = msgspec.structs.asdict(decision) | {"plan": plan_json(decision.plan)}
    if carried is not None:
        screening = {
            "allowed": [_victim(each) for each in carried.screening.allowed],
            "held": [(_victim(each), guard) for each, guard in carried.screening.held],
        }
        said["carried"] = msgspec.structs.asdict(carried) | {"plan": plan_json(carried.plan), "screening": screening}
    return msgspec.json.encode(said, order="deterministic")


def audit_json(record: AuditRecord) -> v1.AuditRecord:
    """Return an audit line as its JSON has it."""
    return v1.AuditRecord(
        schema="koordebpf.audit/v1",
        time=record.time,
        node=record.node,
        dry_run=record.dry_run,
        decided_ns=record.decided_ns,
        sentence=record.sentence,
        features=tuple(map(_audited, record.features)),
        outcomes=record.outcomes,
        latencies=record.latencies,
        signals=record.signals,
        id=record.id,
        interrupted=record.interrupted,
        undecided_namespaces=record.undecided_namespaces,
        hooks=record.hooks or _UNSET,
    )


def audit_schema() -> dict[str, Any]:
    """Return the JSON Schema of an eviction's line."""
    return msgspec.json.schema(v1.AuditRecord)


def verdict_json(verdict: Verdict) -> v1.Verdict:
    """Return a verdict as its JSON has it."""
    use, needs = verdict.evidence, verdict.needs
    of_memory = use is not None and use.resource == MEMORY
    of_cpu = use is not None and use.resource == CPU
    memory_needs = tuple(_memory_need(need) for need in needs if need.dimension.resource == MEMORY)
    return v1.Verdict(
        feature=verdict.feature,
        fires=verdict.fires,
        reason=verdict.reason,
        need_bytes=sum(need.need_bytes for need in memory_needs),
        koordinator_need_bytes=verdict.koordinator_need or 0,
        skipped=verdict.skipped,
        evidence=_memory_use(use) if use is not None and of_memory else None,
        needs=memory_needs,
        ahead=verdict.ahead,
        cpu=cpu_use_json(use) if use is not None and of_cpu else None,
        cpu_needs=tuple(_cpu_need(need) for need in needs if need.dimension.resource == CPU),
        stall=verdict.stall,
        other=_other_verdict(verdict),
    )


def candidate_json(candidate: Candidate) -> v1.Candidate:
    """Return a candidate as its JSON has it."""
    memory, cpu = candidate.of(MEMORY), None
    for each in candidate.holdings:
        if each.resource == CPU:
            cpu = _cpu_holding(each)
    others = tuple(_other_holding(each) for each in candidate.holdings if each.resource not in _WITH_KEYS)
    return v1.Candidate(
        candidate.rank,
        candidate.uid,
        candidate.namespace,
        candidate.name,
        candidate.cgroup_id,
        candidate.priority,
        memory.used,
        memory.released,
        candidate.koordinator_credit_bytes,
        candidate.growth_bytes_per_s,
        memory.asked or NATIVE_MEMORY,
        memory.requested,
        candidate.own_priority,
        candidate.sub_priority,
        candidate.caused_ns,
        candidate.workload,
        candidate.disruption,
        cpu,
        candidate.kernel_bytes,
        others or _UNSET,
    )


def cpu_balance_json(balance: Balance, *, fires: bool) -> v1.CpuAmounts | None:
    """Return a round's amounts of CPU; None where it did not judge CPU, or does not fire."""
    if balance.resource != CPU or not fires:
        return None
    return v1.CpuAmounts(balance.need, balance.pending, balance.shared, balance.credit, balance.missing)


def cpu_use_json(use: UseEvidence) -> v1.CpuEvidence:
    """Return the averages of CPU that a verdict rests on."""
    now = use.now
    return v1.CpuEvidence(
        window_ns=use.window_ns or 0,
        used_millicpu=use.used,
        of_millicpu=use.of,
        used_percent=use.used_percent,
        threshold_percent=use.threshold_percent or 0,
        lower_percent=use.lower_percent or 0,
        threshold_millicpu=use.threshold or 0,
        lower_millicpu=use.lower or 0,
        upper_percent=use.upper_percent,
        upper_millicpu=use.upper,
        request_millicpu=use.request,
        now=None if now is None else v1.CpuMoment(now.used, now.of, now.request),
    )


def bytes_of(balance: Balance) -> Balance:
    """Return the amounts under the keys of memory: zeros where another resource was judged."""
    return balance if balance.resource == MEMORY else Balance(MEMORY)


def other_balance_json(balance: Balance) -> v1.OtherBalance | msgspec.UnsetType:
    """Return a round's amounts of a resource without keys of its own."""
    if balance.resource in _WITH_KEYS:
        return _UNSET
    name, unit = balance.resource.name, balance.resource.unit.name
    amounts = balance.need, balance.pending, balance.shared, balance.credit, balance.missing
    return v1.OtherBalance(name, unit, *amounts)


def _feature(feature: FeaturePlan) -> v1.FeaturePlan:
    sums = bytes_of(feature.balance)
    return v1.FeaturePlan(
        verdict=verdict_json(feature.verdict),
        need_bytes=sums.need,
        pending_bytes=sums.pending,
        shared_bytes=sums.shared,
        victims=tuple(map(_victim, feature.victims)),
        candidates=tuple(map(candidate_json, feature.candidates)),
        excluded=feature.excluded,
        credit_bytes=sums.credit,
        missing_bytes=sums.missing,
        reason=feature.reason,
        cpu=cpu_balance_json(feature.balance, fires=feature.verdict.fires),
        not_honoured=feature.not_honoured,
        other=other_balance_json(feature.balance),
    )


def _audited(feature: AuditedFeature) -> v1.AuditedFeature:
    sums = bytes_of(feature.balance)
    return v1.AuditedFeature(
        verdict=verdict_json(feature.verdict),
        need_bytes=sums.need,
        pending_bytes=sums.pending,
        credit_bytes=sums.credit,
        missing_bytes=sums.missing,
        candidates=feature.candidates,
        ranking=tuple(map(candidate_json, feature.ranking)),
        victims=feature.victims,
        excluded=feature.excluded,
        reason=feature.reason,
        shared_bytes=sums.shared,
        cpu=cpu_balance_json(feature.balance, fires=feature.verdict.fires),
        not_honoured=feature.not_honoured,
        other=other_balance_json(feature.balance),
        reasons=feature.reasons or _UNSET,
    )


def _victim(victim: Victim) -> v1.Victim:
    return v1.Victim(
        candidate_json(victim.candidate),
        victim.reason,
        victim.message,
        victim.for_use,
        victim.passes_budgets,
        victim.grace_s,
        msgspec.UNSET if victim.killer is None else victim.killer,
    )


def _dead_man(planned: PlannedDeadMan) -> v1.DeadManPlan:
    settings, choice = planned.settings, planned.choice
    return v1.DeadManPlan(
        action=settings.action,
        after_ns=settings.after_ns,
        stall_ns=settings.stall_ns,
        reason=choice.reason,
        feature=choice.feature,
        victim=None if choice.victim is None else _victim(choice.victim),
        candidates=tuple(map(candidate_json, choice.ranking)),
        threshold_bytes=choice.threshold_bytes,
        capacity_bytes=choice.capacity_bytes,
    )


def _memory_use(use: UseEvidence) -> v1.Evidence:
    return v1.Evidence(
        capacity_bytes=use.of,
        used_bytes=use.used,
        used_percent=use.used_percent or 0,
        threshold_percent=use.threshold_percent,
        lower_percent=use.lower_percent,
        threshold_bytes=use.threshold,
        lower_bytes=use.lower,
    )


def _memory_need(need: Need) -> v1.ResourceNeed:
    return v1.ResourceNeed(need.dimension.name, need.need, need.now, need.of)


def _cpu_need(need: Need) -> v1.CpuNeed:
    return v1.CpuNeed(need.dimension.name, need.need, need.now, need.of)


def _cpu_holding(holding: Holding) -> v1.CandidateCpu:
    asked = holding.asked or NATIVE_CPU
    return v1.CandidateCpu(holding.used, asked, holding.requested, holding.credit(BE_REQUESTED_CPU))


def _other_holding(holding: Holding) -> v1.OtherHolding:
    resource = holding.resource
    amounts = holding.used, holding.released, holding.asked, holding.requested
    return v1.OtherHolding(resource.name, resource.unit.name, *amounts)


def _other_verdict(verdict: Verdict) -> v1.OtherVerdict | msgspec.UnsetType:
    use = verdict.evidence
    resources = [need.dimension.resource for need in verdict.needs] + ([use.resource] if use is not None else [])
    other = next((each for each in resources if each not in _WITH_KEYS), None)
    if other is None:
        return _UNSET
    needs = tuple(
        v1.OtherNeed(need.dimension.name, need.need, need.now, need.of, need.dimension.is_use) for need in verdict.needs
    )
    return v1.OtherVerdict(other.name, other.unit.name, needs, None if use is None else _other_use(use))


def _other_use(use: UseEvidence) -> v1.OtherUse:
    return v1.OtherUse(
        use.of,
        use.used,
        use.used_percent,
        use.threshold_percent,
        use.lower_percent,
        use.threshold,
        use.lower,
        use.window_ns,
    )
