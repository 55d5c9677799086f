"""As few of the ranking as cover a need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koordebpf.decide.evict.credit import candidate_credit
from koordebpf.decide.plan import Candidate
from koordebpf.detect.verdict import USED


def gives_back(candidate: Candidate, resources: Iterable[str], *, strict: bool = False) -> bool:
    """Tell whether its going gives something back of one of the resources.

    With `strict` a pod whose memory was not measured counts as one that does: Koordinator does not ask.
    """
    for resource in resources:
        if candidate_credit(candidate, resource) > 0:
            return True
        if strict and resource == USED and candidate.used_bytes is None:
            return True
    return False


def choose_victims(
    candidates: Iterable[Candidate], needs: Mapping[str, int], *, strict: bool = False
) -> tuple[Candidate, ...]:
    """Return who has to go to cover the needs, in rank order; all that give something back if that is not enough.

    First down the ranking until every need is covered. Then those chosen early that turn out not to be needed are
    spared again, the latest in rank first. So the result is always part of what the ranking alone would take: nobody
    goes in the place of a pod of lower rank, some of lower rank only need not go as well. It ends with the same last
    pod, since everyone before it together was not enough, and without any one of them a need is not covered.

    A larger need is never answered with fewer bytes (it may be with fewer pods: 55 small ones or one large one).
    A candidate that gives nothing back of what is short is never chosen.

    Args:
        candidates: the ranking; it is read no further than needed.
        needs: resource → bytes; those of 0 or less are covered.
        strict: down the ranking and no further, as Koordinator does: nobody is spared again.
    """
    left = {resource: need for resource, need in needs.items() if need > 0}
    short = set(left)
    chosen: list[Candidate] = []
    for candidate in candidates if short else ():
        if not gives_back(candidate, short, strict=strict):
            continue
        chosen.append(candidate)
        for resource, amount in left.items():
            left[resource] = rest = amount - candidate_credit(candidate, resource)
            if rest <= 0:
                short.discard(resource)
        if not short:
            break
    if strict:
        return tuple(chosen)
    excess = {resource: max(-amount, 0) for resource, amount in left.items()}
    spared: set[str] = set()
    # Each gives back something: without any excess nobody can be spared.
    for candidate in reversed(chosen[:-1]) if any(excess.values()) else ():
        amounts = {resource: candidate_credit(candidate, resource) for resource in excess}
        if all(amount <= excess[resource] for resource, amount in amounts.items()):
            spared.add(candidate.uid)
            excess = {resource: excess[resource] - amount for resource, amount in amounts.items()}
    return tuple(candidate for candidate in chosen if candidate.uid not in spared)
