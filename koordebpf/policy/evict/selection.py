"""Select this round's victims from the ranking, within the budgets and PodDisruptionBudgets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from koordebpf.policy.credit import credit_of
from koordebpf.policy.evict.allowance import Allowance
from koordebpf.policy.evict.candidates.disruption import blocked_by
from koordebpf.policy.evict.candidates.protection import Reason, exclusion
from koordebpf.policy.evict.round import Round
from koordebpf.policy.evict.victims import choose_victims, giving
from koordebpf.policy.plan import Candidate, Excluded
from koordebpf.state.amount import Dimension

# Codes of candidates whose turn had come and who may not go in this round.
PASSED_OVER = frozenset({"pdb", "workload_budget", "namespace_budget"})


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
                allowance.take(each)
                yield each

    def blocked_that_may(self) -> Iterator[Candidate]:
        for each in self.blocked:
            if (over := self._allowance.over(each.namespace, each.workload)) is not None:
                self.held[each.uid] = each, over
            else:
                self._allowance.take(each)
                yield each

    # The candidate with what the API server would say, and whether that is no.
    def _predicted(self, candidate: Candidate) -> tuple[Candidate, bool]:
        answer = self._allowance.answer(candidate)
        if answer is None:
            return candidate, False
        is_blocked = self._allowance.is_blocked(answer, candidate.namespace)
        text = blocked_by(answer.pdb) if is_blocked and answer.pdb is not None else answer.text
        return candidate if text == candidate.disruption else replace(candidate, disruption=text), is_blocked
