"""As few of the ranking as cover a need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from koordebpf.policy.credit import credit_in
from koordebpf.policy.plan import Candidate
from koordebpf.state.amount import MEMORY, USED, Dimension


def giving(dimensions: Collection[Dimension], *, strict: bool = False) -> Callable[[Candidate], object]:
    """Return a predicate: whether the eviction of a candidate releases something of what is short.

    With `strict` a pod whose memory was not measured counts as one that does: Koordinator does not ask.
    """
    credits = [credit_in(each) for each in dimensions]
    with_unmeasured = strict and USED in dimensions
    if len(credits) == 1 and not with_unmeasured:
        return credits[0]

    def helps(candidate: Candidate) -> bool:
        for credit in credits:
            if credit(candidate):
                return True
        return with_unmeasured and candidate.of(MEMORY).used is None

    return helps


def choose_victims(
    candidates: Iterable[Candidate], needs: Mapping[Dimension, int], *, strict: bool = False
) -> tuple[Candidate, ...]:
    """Return the victims that cover the needs, in rank order; all that release something if that is not enough.

    First down the ranking until every need is covered. Then those chosen early that turn out not to be needed are
    spared again, the latest in rank first. So the result is always part of what the ranking alone would take: no pod
    is evicted in place of one of lower rank, some of lower rank are only spared. It ends with the same last
    pod, since everyone before it together was not enough, and without any one of them a need is not covered.

    A larger need is never answered with fewer bytes (it may be with fewer pods: 55 small ones or one large one).
    A candidate that releases nothing of what is short is never chosen.

    Args:
        candidates: the ranking; it is read no further than needed.
        needs: by dimension, in its unit; those of 0 or less are covered.
        strict: down the ranking and no further, as Koordinator does: no pod is spared again.
    """
    left = {resource: need for resource, need in needs.items() if need > 0}
    credits = [(resource, credit_in(resource)) for resource in left]
    short = set(left)
    helps = giving(short, strict=strict)
    chosen: list[Candidate] = []
    for candidate in candidates if short else ():
        if not helps(candidate):
            continue
        chosen.append(candidate)
        for resource, credit in credits:
            left[resource] = rest = left[resource] - credit(candidate)
            if rest <= 0 and resource in short:
                short.discard(resource)
                helps = giving(short, strict=strict)
        if not short:
            break
    if strict:
        return tuple(chosen)
    excess = {resource: max(-amount, 0) for resource, amount in left.items()}
    spared: set[str] = set()
    # Each releases something: without any excess no pod can be spared.
    for candidate in reversed(chosen[:-1]) if any(excess.values()) else ():
        for resource, credit in credits:
            if credit(candidate) > excess[resource]:
                break
        else:
            spared.add(candidate.uid)
            for resource, credit in credits:
                excess[resource] -= credit(candidate)
    return tuple([candidate for candidate in chosen if candidate.uid not in spared])
