"""Plans and audit records out of their JSON."""

from __future__ import annotations

import msgspec

from koordebpf.decision.dead_man import DeadManChoice, DeadManSettings, PlannedDeadMan
from koordebpf.decision.node_plan import NodePlan
from koordebpf.errors import ConfigError
from koordebpf.policy.detect.verdict import Need, UseEvidence, UseMoment, Verdict
from koordebpf.policy.evict.all_features import RESOURCE_OF
from koordebpf.policy.plan import Balance, Candidate, FeaturePlan, Holding, Plan, Victim
from koordebpf.state.amount import BE_REQUESTED_CPU, CPU, MEMORY, Dimension, Resource, Unit, dimension
from koordebpf.store.audit_record import AuditedFeature, AuditRecord
from koordebpf.store.v1 import types as v1


def decode_plan(raw: bytes, path: str) -> Plan:
    """Return the plan in `raw`; `path` says where it came from.

    Raises: ConfigError: not a plan; names the JSON path and the rule.
    """
    try:
        return plan_of_json(msgspec.json.decode(raw, type=v1.Plan))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(path, raw[:80].decode(errors="replace"), str(error)) from error


def plan_of_json(plan: v1.Plan) -> Plan:
    """Return the plan that JSON holds."""
    features = tuple(map(_feature, plan.features))
    return Plan(plan.now_ns, features, plan.sentence, plan.ladder, plan.undecided_namespaces)


def node_plan_of_json(plan: v1.NodePlan) -> NodePlan:
    """Return the plan that `koordebpf plan --json` printed."""
    return NodePlan(
        **msgspec.structs.asdict(plan_of_json(plan)),
        suppression=plan.suppression,
        stall_net=verdict_of_json(plan.stall_net),
        guards=() if plan.guards is msgspec.UNSET else plan.guards,
        strategies={} if plan.strategies is msgspec.UNSET else plan.strategies,
        dead_man=None if plan.dead_man is msgspec.UNSET else _dead_man(plan.dead_man),
    )


def decode_audit_line(raw: bytes) -> AuditRecord:
    """Return the record of an audit line.

    Raises: msgspec.DecodeError: it is none.
    """
    return audit_of_json(msgspec.json.decode(raw, type=v1.AuditRecord))


def decode_audit_lines(raw: bytes) -> tuple[AuditRecord, ...]:
    """Return the records of a JSON array.

    Raises: msgspec.DecodeError: it is none.
    """
    return tuple(map(audit_of_json, msgspec.json.decode(raw, type=list[v1.AuditRecord])))


def audit_of_json(record: v1.AuditRecord) -> AuditRecord:
    """Return the audit record that JSON holds."""
    return AuditRecord(
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
        hooks=() if record.hooks is msgspec.UNSET else record.hooks,
    )


def verdict_of_json(verdict: v1.Verdict) -> Verdict:
    """Return the verdict that JSON holds."""
    has_compared = verdict.fires and verdict.stall is None and bool(verdict.needs)
    needs = [
        Need(_dimension(each.resource, MEMORY), each.need_bytes, each.now_bytes, each.of_bytes)
        for each in verdict.needs
    ]
    needs += [
        Need(_dimension(each.resource, CPU), each.need_millicpu, each.now_millicpu, each.of_millicpu)
        for each in verdict.cpu_needs
    ]
    use = _memory_use(verdict.evidence) or _cpu_use(verdict.cpu)
    if (other := verdict.other) is not msgspec.UNSET:
        resource = _resource(other.resource, other.unit)
        needs += [
            Need(Dimension(each.dimension, resource, each.is_use), each.need, each.now, each.of) for each in other.needs
        ]
        use = None if other.use is None else UseEvidence(resource, **msgspec.structs.asdict(other.use))
    return Verdict(
        feature=verdict.feature,
        fires=verdict.fires,
        reason=verdict.reason,
        skipped=verdict.skipped,
        evidence=use,
        needs=tuple(needs),
        koordinator_need=verdict.koordinator_need_bytes if has_compared else None,
        ahead=verdict.ahead,
        stall=verdict.stall,
    )


def candidate_of_json(candidate: v1.Candidate) -> Candidate:
    """Return the candidate that JSON holds."""
    asked = candidate.request_resource, candidate.request_bytes
    holdings = [Holding(MEMORY, candidate.used_bytes, candidate.credit_bytes, *asked)]
    if (cpu := candidate.cpu) is not None:
        asked, batch = (cpu.request_resource, cpu.request_millicpu), ((BE_REQUESTED_CPU.name, cpu.batch_millicpu),)
        holdings.append(Holding(CPU, cpu.used_millicpu, cpu.used_millicpu or 0, *asked, batch))
    for each in () if candidate.others is msgspec.UNSET else candidate.others:
        resource = _resource(each.resource, each.unit)
        holdings.append(Holding(resource, each.used, each.released, each.asked, each.requested))
    return Candidate(
        candidate.rank,
        candidate.uid,
        candidate.namespace,
        candidate.name,
        candidate.cgroup_id,
        candidate.priority,
        tuple(holdings),
        candidate.koordinator_credit_bytes,
        candidate.growth_bytes_per_s,
        candidate.kernel_bytes,
        candidate.own_priority,
        candidate.sub_priority,
        candidate.caused_ns,
        candidate.workload,
        candidate.disruption,
    )


def _feature(feature: v1.FeaturePlan) -> FeaturePlan:
    return FeaturePlan(
        verdict=verdict_of_json(feature.verdict),
        balance=_balance(feature),
        victims=tuple(map(_victim, feature.victims)),
        candidates=tuple(map(candidate_of_json, feature.candidates)),
        excluded=feature.excluded,
        reason=feature.reason,
        not_honoured=feature.not_honoured,
    )


def _audited(feature: v1.AuditedFeature) -> AuditedFeature:
    return AuditedFeature(
        verdict=verdict_of_json(feature.verdict),
        balance=_balance(feature),
        candidates=feature.candidates,
        ranking=tuple(map(candidate_of_json, feature.ranking)),
        victims=feature.victims,
        excluded=feature.excluded,
        reason=feature.reason,
        not_honoured=feature.not_honoured,
        reasons={} if feature.reasons is msgspec.UNSET else feature.reasons,
    )


# Where nothing was judged the feature's name says of which resource it is.
def _balance(feature: v1.FeaturePlan | v1.AuditedFeature) -> Balance:
    if (other := feature.other) is not msgspec.UNSET:
        resource = _resource(other.resource, other.unit)
        return Balance(resource, other.need, other.pending, other.shared, other.credit, other.missing)
    if (cpu := feature.cpu) is not None:
        return Balance(CPU, *msgspec.structs.astuple(cpu))
    return Balance(
        RESOURCE_OF.get(feature.verdict.feature, MEMORY),
        feature.need_bytes,
        feature.pending_bytes,
        feature.shared_bytes,
        feature.credit_bytes,
        feature.missing_bytes,
    )


def _victim(victim: v1.Victim) -> Victim:
    candidate = candidate_of_json(victim.candidate)
    killer = None if victim.killer is msgspec.UNSET else victim.killer
    return Victim(
        candidate, victim.reason, victim.message, victim.for_use, victim.passes_budgets, victim.grace_s, killer
    )


# When the choice ends is not in it: that is of the agent's clock.
def _dead_man(plan: v1.DeadManPlan) -> PlannedDeadMan:
    victim = None if plan.victim is None else _victim(plan.victim)
    choice = DeadManChoice(
        plan.reason,
        victim,
        (victim.candidate.cgroup_id if victim is not None else None) or 0,
        tuple(map(candidate_of_json, plan.candidates)),
        plan.threshold_bytes,
        plan.capacity_bytes,
        feature=plan.feature,
    )
    return PlannedDeadMan(DeadManSettings(plan.action, plan.after_ns, plan.stall_ns), choice)


def _memory_use(use: v1.Evidence | None) -> UseEvidence | None:
    if use is None:
        return None
    return UseEvidence(
        MEMORY,
        of=use.capacity_bytes,
        used=use.used_bytes,
        used_percent=use.used_percent,
        threshold_percent=use.threshold_percent,
        lower_percent=use.lower_percent,
        threshold=use.threshold_bytes,
        lower=use.lower_bytes,
    )


def _cpu_use(use: v1.CpuEvidence | None) -> UseEvidence | None:
    if use is None:
        return None
    now = use.now
    return UseEvidence(
        CPU,
        of=use.of_millicpu,
        used=use.used_millicpu,
        used_percent=use.used_percent,
        threshold_percent=use.threshold_percent,
        lower_percent=use.lower_percent,
        threshold=use.threshold_millicpu,
        lower=use.lower_millicpu,
        window_ns=use.window_ns,
        upper_percent=use.upper_percent,
        upper=use.upper_millicpu,
        request=use.request_millicpu,
        now=None if now is None else UseMoment(now.used_millicpu, now.of_millicpu, now.request_millicpu),
    )


# A line may be of another version, whose dimensions are not known here.
def _dimension(name: str, resource: Resource) -> Dimension:
    try:
        return dimension(name)
    except KeyError:
        return Dimension(name, resource)


def _resource(name: str, unit: str) -> Resource:
    return Resource(name, Unit(unit))
