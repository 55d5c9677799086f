"""A recorded decision's ranking with a reason for each pod: why it was chosen, stays, or is no candidate. Pure.

A decision is decoded as far as a page needs it, not decided again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koordebpf.policy.detect.verdict import UseEvidence
from koordebpf.policy.evict.disruption import ALLOWED
from koordebpf.policy.plan import Candidate, Excluded, Holding
from koordebpf.report.sentences import outcome_sentence
from koordebpf.state.amount import MEMORY
from koordebpf.state.outcome import Outcome
from koordebpf.state.view import PodView
from koordebpf.store.audit_record import AuditedFeature
from koordebpf.tools.incident.values import FeatureRanking, RankedPod


def ranking_of(
    feature: AuditedFeature, outcomes: Mapping[str, Outcome], others: Sequence[PodView] = (), most: int | None = None
) -> FeatureRanking:
    """Return what one feature judged, the victims first, then by rank, then who is no candidate.

    Args:
        feature: with all its candidates, or with the ten best.
        outcomes: of its victims, by UID.
        others: all pods that there were; those that the feature does not name get the reason, too.
        most: so many rows at most, but for victims, which all have one; None: all.
    """
    rows = [_candidate(each, feature, outcomes) for each in feature.ranking]
    rows += [_excluded(each) for each in feature.excluded]
    named = {each.uid for each in feature.ranking} | {each.uid for each in feature.excluded}
    rows += [_other(each, feature) for each in others if each.uid not in named]
    rows.sort(key=lambda row: not row.is_victim)
    unseen = max(0, feature.candidates - len(feature.ranking))
    victims = sum(row.is_victim for row in rows)
    kept = rows if most is None else rows[: max(most, victims)]
    verdict = feature.verdict
    reason = verdict.reason if not feature.reason or feature.reason in verdict.reason else _two(verdict.reason, feature)
    return FeatureRanking(verdict.feature, reason, tuple(kept), unseen + len(rows) - len(kept))


def _two(reason: str, feature: AuditedFeature) -> str:
    return f"{reason}; {feature.reason}" if reason else feature.reason


def _candidate(each: Candidate, feature: AuditedFeature, outcomes: Mapping[str, Outcome]) -> RankedPod:
    memory = each.of(MEMORY)
    is_victim = each.uid in feature.victims
    return RankedPod(
        pod=f"{each.namespace}/{each.name}",
        rank=each.rank,
        is_victim=is_victim,
        why=_chosen(each, feature, outcomes) if is_victim else _stays(each, feature),
        priority=each.priority,
        used_bytes=memory.used,
        credit_bytes=memory.released,
        growth_bytes_per_s=each.growth_bytes_per_s,
        caused_ns=each.caused_ns,
    )


def _chosen(each: Candidate, feature: AuditedFeature, outcomes: Mapping[str, Outcome]) -> str:
    asked = feature.reasons.get(each.uid)
    parts = [asked if asked is not None and asked != feature.verdict.reason else f"chosen: rank {each.rank}"]
    if each.disruption not in (None, ALLOWED):
        parts.append(str(each.disruption))
    if (outcome := outcomes.get(each.uid)) is not None:
        parts.append(outcome_sentence(outcome))
    return "; ".join(parts)


def _stays(each: Candidate, feature: AuditedFeature) -> str:
    if each.disruption not in (None, ALLOWED):
        return f"stays: {each.disruption}"
    sums = feature.balance
    if not feature.verdict.fires:
        return "stays: this feature does not fire"
    if feature.victims and not sums.missing and not feature.verdict.is_by_name:
        return f"stays: {sums.text(sums.credit)} of the victims cover the {sums.text(sums.need)} that were needed"
    return f"stays: {feature.reason or feature.verdict.reason}"


def _excluded(each: Excluded) -> RankedPod:
    return RankedPod(f"{each.namespace}/{each.name}", None, is_victim=False, why=f"no candidate: {each.why}")


# Such pods have nothing by which the feature would take them: their class or their priority is enough.
def _other(pod: PodView, feature: AuditedFeature) -> RankedPod:
    qos = f"koordinator.sh/qosClass {pod.koord_qos}" if pod.koord_qos else "no label koordinator.sh/qosClass"
    why = f"no candidate of {feature.verdict.feature}: {qos}, Kubernetes {pod.kube_qos}, priority {pod.terms.priority}"
    return RankedPod(
        pod=pod.key,
        rank=None,
        is_victim=False,
        why=why,
        priority=pod.priority,
        used_bytes=None if pod.memory is None else pod.memory.held_bytes,
        growth_bytes_per_s=pod.growth_bytes_per_s,
    )


def outcome_lines(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """Return a sentence for each outcome."""
    return tuple(map(outcome_sentence, outcomes))


class _Verdict(msgspec.Struct, frozen=True):
    feature: str
    fires: bool
    evidence: UseEvidence | None = None


class _Who(msgspec.Struct, frozen=True):
    uid: str
    namespace: str
    name: str
    holdings: tuple[Holding, ...] = ()

    @property
    def credit_bytes(self) -> int:
        """What its eviction releases of memory."""
        return sum(each.released for each in self.holdings if each.resource == MEMORY)


class _Victim(msgspec.Struct, frozen=True):
    candidate: _Who


class _Feature(msgspec.Struct, frozen=True):
    verdict: _Verdict
    victims: tuple[_Victim, ...] = ()


class _Plan(msgspec.Struct, frozen=True):
    now_ns: int
    sentence: str
    features: tuple[_Feature, ...] = ()


class _Carried(msgspec.Struct, frozen=True):
    plan: _Plan
    by: str = "evict"


class _SuppressPlan(msgspec.Struct, frozen=True):
    be_millicpu: int | None = None
    held_millicpu: int | None = None


class _Suppress(msgspec.Struct, frozen=True):
    plan: _SuppressPlan | None = None


class _Strategies(msgspec.Struct, frozen=True):
    suppress: _Suppress | None = None


class RecordedDecision(msgspec.Struct, frozen=True):
    """One round's decision, without its rankings; `encode_decision` made it."""

    plan: _Plan
    carried: _Carried | None = None
    strategies: _Strategies = _Strategies()

    @property
    def memory(self) -> UseEvidence | None:
        """The use of memory that a feature judged: the first that has marks; None: none was judged."""
        for feature in self.plan.features:
            found = feature.verdict.evidence
            if found is not None and found.resource == MEMORY and found.threshold is not None:
                return found
        return None

    @property
    def suppress(self) -> _SuppressPlan | None:
        """What best-effort pods may have of the CPUs; None: it was not judged."""
        found = self.strategies.suppress
        return None if found is None else found.plan

    @property
    def victims(self) -> tuple[_Who, ...]:
        """The pods that were to be evicted then."""
        if self.carried is None:
            return ()
        return tuple(each.candidate for feature in self.carried.plan.features for each in feature.victims)


def read_decision(raw: bytes) -> RecordedDecision:
    """Return what the JSON says.

    Raises:  msgspec.DecodeError: it is no decision.
    """
    return msgspec.json.decode(raw, type=RecordedDecision)
