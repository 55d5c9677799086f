"""What one feature's round comes to, in the unit that the feature judges: memory in bytes, or CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from koordebpf.policy.credit import amount_text, candidate_credit
from koordebpf.policy.detect.verdict import BE_REQUESTED_CPU, USED, USED_CPU, Verdict
from koordebpf.policy.plan import Candidate, FeaturePlan
from koordebpf.state.pods.requests import BATCH_CPU
from koordebpf.units import format_bytes, format_millicpu

if TYPE_CHECKING:
    from koordebpf.store.audit import AuditedFeature


class Amounts(msgspec.Struct, frozen=True):
    """The parts of `FeaturePlan` in its unit, and how to say one of them."""

    text: Callable[[int], str]
    need: int
    pending: int
    shared: int
    credit: int
    missing: int


def amounts_of(feature: FeaturePlan | AuditedFeature) -> Amounts:
    """Return a feature's amounts: those of CPU where it judges CPU, for it has none in bytes."""
    if (cpu := feature.cpu) is not None:
        return Amounts(format_millicpu, *msgspec.structs.astuple(cpu))
    return Amounts(
        format_bytes,
        feature.need_bytes,
        feature.pending_bytes,
        feature.shared_bytes,
        feature.credit_bytes,
        feature.missing_bytes,
    )


def released_text(candidate: Candidate, verdict: Verdict) -> str:
    """Return what the eviction of a candidate releases of what is short, for people."""
    texts = []
    for resource in verdict.amounts:
        amount = candidate_credit(candidate, resource)
        if resource in (USED, USED_CPU):
            texts.append(amount_text(resource, amount))
        elif amount:
            asked = BATCH_CPU if resource == BE_REQUESTED_CPU else resource
            texts.append(f"{amount_text(resource, amount)} of {asked}")
    return " and ".join(texts) or "nothing of what is short"
