"""The decisions of a recording: those alike in a row as one, each with what became of it, the first with rankings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from koordebpf.decision.decide_tick import CarriedOut
from koordebpf.policy.plan import FeaturePlan
from koordebpf.report.pages.explain import steps_text
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import PodView
from koordebpf.store.audit_record import AuditedFeature, OpenPlan, asked_reasons
from koordebpf.store.recorder.values import RecordedEvent
from koordebpf.tools.incident.ranking import RecordedDecision, outcome_lines, ranking_of
from koordebpf.tools.incident.values import DecisionShown, FeatureRanking
from koordebpf.tools.recorder.pages import decided_at, decided_times, outcomes_in
from koordebpf.units import NS_PER_S

_MOST = 200  # decisions that have a part of the page
# Rows of all rankings. Why: a row is 250 bytes, so that those of a page are 1 MiB at most
MOST_ROWS = 3_000
_FEW_ROWS = 10
_ALIKE_NS = 60 * NS_PER_S  # Why: a dry run decides the same again after each cool time, which is seconds


class VictimSeen(NamedTuple):
    """A pod that was to be evicted. Bytes."""

    uid: str
    pod: str
    credit_bytes: int


class Decided(NamedTuple):
    """One round of which something was carried out, as recorded. `decided_ns` CLOCK_MONOTONIC."""

    place: int
    wall_ns: int
    decided_ns: int
    sentence: str
    victims: tuple[VictimSeen, ...]


class FullDecision(NamedTuple):
    """A round decided again, and the pods that there were."""

    carried: CarriedOut
    pods: tuple[PodView, ...]


DecideAgain = Callable[[int], FullDecision | None]


def decided(
    rounds: Iterable[tuple[int, int, RecordedDecision]], events: Sequence[RecordedEvent]
) -> tuple[Decided, ...]:
    """Return those with victims; of each round its place, wall clock and decision."""
    times = decided_times(events)
    return tuple(
        Decided(
            place,
            wall_ns,
            decided_at(each.carried.plan.now_ns, wall_ns / NS_PER_S, times),
            each.carried.plan.sentence,
            tuple(VictimSeen(who.uid, f"{who.namespace}/{who.name}", who.credit_bytes) for who in each.victims),
        )
        for place, wall_ns, each in rounds
        if each.carried is not None and each.victims
    )


class Outcomes:
    """What became of victims, by the moment of their decision."""

    def __init__(self, events: Iterable[RecordedEvent]) -> None:
        self._found: dict[int, dict[str, Outcome]] = {}
        for event in events:
            for each in outcomes_in(event):
                of_plan = self._found.setdefault(each.decided_ns, {})
                if each.uid not in of_plan or of_plan[each.uid].result is Result.SENT:
                    of_plan[each.uid] = each

    def of(self, decided_ns: int) -> Mapping[str, Outcome]:
        """Return the outcomes of one plan, by UID."""
        return self._found.get(decided_ns, {})


def decisions_shown(
    found: Sequence[Decided], outcomes: Outcomes, events: Sequence[RecordedEvent], again: DecideAgain
) -> tuple[DecisionShown, ...]:
    """Return the decisions; of more than there is room for the last ones.

    Args:
        found: all of them.
        outcomes: of their victims.
        events: of the recording.
        again: decides the round at a place again.
    """
    shown, rows = [], MOST_ROWS
    for alike in list(_alike(found))[-_MOST:]:
        first = alike[0]
        known = outcomes.of(first.decided_ns)
        full = again(first.place) if rows > 0 else None
        rankings: tuple[FeatureRanking, ...] = ()
        latencies = ""
        if full is not None:
            most = rows if rows >= len(full.pods) else min(rows, _FEW_ROWS)
            rankings = _rankings(full, known, most)
            rows -= sum(len(each.rows) for each in rankings)
            latencies = _latencies(full, first, known, events)
        shown.append(
            DecisionShown(
                at_s=first.wall_ns / NS_PER_S,
                last_s=alike[-1].wall_ns / NS_PER_S,
                times=len(alike),
                sentence=first.sentence,
                victims=tuple(each.pod for each in first.victims),
                is_dry_run=any(each.result is Result.DRY_RUN for each in known.values()),
                outcomes=outcome_lines(known.values()),
                rankings=rankings,
                latencies=latencies,
            )
        )
    return tuple(shown)


def _alike(found: Sequence[Decided]) -> Iterator[list[Decided]]:
    group: list[Decided] = []
    for each in found:
        if group and not _is_alike(group[-1], each):
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _is_alike(before: Decided, each: Decided) -> bool:
    is_near = each.wall_ns - before.wall_ns <= _ALIKE_NS
    return is_near and [who.uid for who in each.victims] == [who.uid for who in before.victims]


# What does not fire ranks no pod: its reason is in the plan's page.
def _rankings(full: FullDecision, outcomes: Mapping[str, Outcome], most: int) -> tuple[FeatureRanking, ...]:
    found = []
    for feature in full.carried.plan.features:
        if feature.verdict.fires:
            found.append(ranking_of(whole(feature), outcomes, full.pods, most))
            most = max(0, most - len(found[-1].rows))
    return tuple(found)


def whole(feature: FeaturePlan) -> AuditedFeature:
    """Return a feature's part as the audit has it, with every candidate."""
    return AuditedFeature(
        verdict=feature.verdict,
        balance=feature.balance,
        candidates=len(feature.candidates),
        ranking=feature.candidates,
        victims=tuple(victim.candidate.uid for victim in feature.victims),
        excluded=feature.excluded,
        reason=feature.reason,
        not_honoured=feature.not_honoured,
        reasons=asked_reasons(feature),
    )


def _latencies(
    full: FullDecision, first: Decided, outcomes: Mapping[str, Outcome], events: Sequence[RecordedEvent]
) -> str:
    seen_ns = next(
        (
            each.data["crossed_ns"]
            for each in events
            if each.kind == "PlanDecided" and each.data["decided_ns"] == first.decided_ns
        ),
        None,
    )
    plan = OpenPlan(
        full.carried.plan,
        node="",
        dry_run=False,
        seen_ns=seen_ns,
        decided_ns=first.decided_ns,
        wall_s=first.wall_ns / NS_PER_S,
    )
    for outcome in outcomes.values():
        plan.add_outcome(outcome)
    for event in events:
        if event.kind == "MemoryReleased" and event.data["now_ns"] >= first.decided_ns:
            plan.record_freed(event.data["entry"]["uid"], event.data["now_ns"])
    return steps_text(plan.record().latencies)
