"""As few of the ranking as cover a need."""

from __future__ import annotations

from collections.abc import Sequence

from koordebpf.decide.plan import Candidate


def choose_victims(candidates: Sequence[Candidate], need_bytes: int) -> tuple[Candidate, ...]:
    """Return who has to go to cover the need, in rank order; all that give anything back if that is not enough.

    First down the ranking until the need is covered. Then those chosen early that turn out not to be needed are
    spared again, the latest in rank first. So the result is always part of what the ranking alone would take: nobody
    goes in the place of a pod of lower rank, some of lower rank only need not go as well. It ends with the same last
    pod, since everyone before it together was not enough, and without any one of them the need is not covered.

    A larger need is never answered with fewer bytes (it may be with fewer pods: 55 small ones or one large one).
    A candidate that gives nothing back is never chosen.
    """
    chosen: list[Candidate] = []
    credit = 0
    for candidate in candidates:
        if credit >= need_bytes:
            break
        if candidate.credit_bytes > 0:
            chosen.append(candidate)
            credit += candidate.credit_bytes
    spared: set[str] = set()
    for candidate in reversed(chosen[:-1]):
        if credit - candidate.credit_bytes >= need_bytes:
            spared.add(candidate.uid)
            credit -= candidate.credit_bytes
    return tuple(candidate for candidate in chosen if candidate.uid not in spared)
