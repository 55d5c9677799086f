"""What the eviction of a pod releases, for people."""

from __future__ import annotations

from koordebpf.policy.credit import candidate_credit
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.plan import Candidate
from koordebpf.state.amount import MEMORY, unit_of
from koordebpf.units import format_bytes


def released_text(candidate: Candidate, verdict: Verdict) -> str:
    """Return what the eviction of a candidate releases of what is short, for people."""
    if verdict.is_by_name:
        return format_bytes(candidate.of(MEMORY).released)
    texts = []
    for dimension in verdict.amounts:
        amount = candidate_credit(candidate, dimension)
        text = unit_of(dimension.resource).format(amount)
        if dimension.is_use:
            texts.append(text)
        elif amount:
            texts.append(f"{text} of {dimension.asked or dimension.name}")
    return " and ".join(texts) or "nothing of what is short"
