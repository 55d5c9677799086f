"""What the eviction of a pod releases, for people."""

from __future__ import annotations

from koordebpf.policy.credit import candidate_credit
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.katalyst.manager import PODS
from koordebpf.policy.plan import Candidate
from koordebpf.state.amount import MEMORY


def released_text(candidate: Candidate, verdict: Verdict) -> str:
    """Return what the eviction of a candidate releases of what is short, for people."""
    if is_asked_for(verdict):
        return MEMORY.unit.format(candidate.of(MEMORY).released)
    texts = []
    for dimension in verdict.amounts:
        amount = candidate_credit(candidate, dimension)
        text = dimension.resource.unit.format(amount)
        if dimension.is_use:
            texts.append(text)
        elif amount:
            texts.append(f"{text} of {dimension.asked or dimension.name}")
    return " and ".join(texts) or "nothing of what is short"


def is_asked_for(verdict: Verdict) -> bool:
    """Tell whether plugins ask for pods, by name: then pods are what is counted, and no amount is short."""
    return any(dimension.resource.unit == PODS for dimension in verdict.amounts)
