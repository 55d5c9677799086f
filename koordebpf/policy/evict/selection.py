"""Select this round's victims from the ranking, within the budgets and PodDisruptionBudgets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from koordebpf.policy.credit import credit_in, credit_of
from koordebpf.policy.evict.disruption import blocked_by
from koordebpf.policy.evict.exemptions import Reason, exclusion
from koordebpf.policy.evict.round import Allowance, Round
from koordebpf.policy.plan import Candidate, Excluded
from koordebpf.state.amount import MEMORY, USED, Dimension

# Codes of candidates whose turn had come and who may not go in this round.
PASSED_OVER = frozenset({"pdb", "workload_budget", "namespace_budget"})


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


class Selection(msgspec.Struct, frozen=True):
    """The victims in the order in which they go, and who would have gone before the last of them but may not."""

    ranking: tuple[Candidate, ...]  # each with what its PodDisruptionBudget says
    victims: tuple[Candidate, ...]
    passed_over: tuple[Excluded, ...]


def select(current: Round, candidates: Sequence[Candidate], needs: Mapping[Dimension, int]) -> Selection:
    """Choose as few of the ranking as cover the needs, and say who is passed over for a budget.

    A pod whose workload or namespace has lost enough within a minute, earlier victims of this round included, is
    passed over. So is, with executor api, one that a PodDisruptionBudget blocks: it comes after all others, and only
    where they do not cover the need, for the prediction may be out of date.

    Which pods may be evicted does not depend on the need, so a larger need is never answered with fewer bytes.
    """
    strict = current.settings.strict_compat
    if current.allowance.is_endless:
        return Selection(tuple(candidates), choose_victims(candidates, needs, strict=strict), ())
    short = {resource for resource, need in needs.items() if need > 0}
    trial = _Trial(current.allowance.copy(), giving(short, strict=strict))
    free: Iterable[Candidate] = trial.free(candidates)
    ranking = candidates
    if current.allowance.knows_pdbs:
        free, ranking = list(free), trial.ranking  # to the end: every pod has what a PodDisruptionBudget does to it
    victims = choose_victims(free, needs, strict=strict)
    missing = _missing(victims, needs)
    if missing and trial.blocked:
        victims += choose_victims(list(trial.blocked_that_may()), missing, strict=strict)
        missing = _missing(victims, needs)
    going = {each.uid for each in victims}
    # Where a blocked one is a victim too, all others were tried.
    is_all = bool(missing) or any(each.uid in going for each in trial.blocked)
    last = max((each.rank for each in victims), default=0)
    passed_over = tuple(
        exclusion(each, reason)
        for each, reason in trial.held.values()
        if each.uid not in going and (is_all or each.rank < last)
    )
    return Selection(tuple(ranking), victims, passed_over)


def _missing(victims: Sequence[Candidate], needs: Mapping[Dimension, int]) -> dict[Dimension, int]:
    left = {resource: need - credit_of(victims, resource) for resource, need in needs.items()}
    return {resource: amount for resource, amount in left.items() if amount > 0}


class _Trial:
    # A walk down a ranking as if every pod were evicted that may be.

    def __init__(self, allowance: Allowance, helps: Callable[[Candidate], object]) -> None:
        self.ranking: list[Candidate] = []  # as far as it was gone down, where PodDisruptionBudgets are known
        self.held: dict[str, tuple[Candidate, Reason]] = {}
        self.blocked: list[Candidate] = []  # of those held: by a PodDisruptionBudget
        self._allowance = allowance
        self._helps = helps

    def free(self, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
        allowance, helps, is_blocked = self._allowance, self._helps, False
        knows_pdbs = allowance.knows_pdbs
        for candidate in candidates:
            each = candidate
            if knows_pdbs:
                each, is_blocked = self._predicted(candidate)
                self.ranking.append(each)
            if not helps(each):
                continue
            if (over := allowance.over(each.namespace, each.workload)) is not None:
                self.held[each.uid] = each, over
            elif is_blocked:
                self.held[each.uid] = each, ("pdb", f"{each.disruption}: others go first")
                self.blocked.append(each)
            else:
                allowance.spend(each)
                yield each

    def blocked_that_may(self) -> Iterator[Candidate]:
        for each in self.blocked:
            if (over := self._allowance.over(each.namespace, each.workload)) is not None:
                self.held[each.uid] = each, over
            else:
                self._allowance.spend(each)
                yield each

    # The candidate with what the API server would say, and whether that is no.
    def _predicted(self, candidate: Candidate) -> tuple[Candidate, bool]:
        answer = self._allowance.answer(candidate)
        if answer is None:
            return candidate, False
        is_blocked = self._allowance.is_blocked(answer, candidate.namespace)
        text = blocked_by(answer.pdb) if is_blocked and answer.pdb is not None else answer.text
        return candidate if text == candidate.disruption else replace(candidate, disruption=text), is_blocked
