"""A recording decided again, round by round: as it was, or under other settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickDecision, TickFrame
from koordebpf.store.recorder.read import Recording
from koordebpf.tools.plan import Case, case_of_tick, with_entries, with_feature_gates, with_file
from koordebpf.tools.recorder.rounds import DecidesAgain, time_text, without_collector


class ReplayedRound(msgspec.Struct, frozen=True):
    """One round that is worth a line: of which something was done, or which is decided otherwise now.

    `victims` are namespace/name, of the recorded decision and of this one. `is_same`: bit for bit.
    """

    number: int  # of the rounds, from 1
    time: str
    is_decision: bool
    is_same: bool
    sentence: str
    victims: tuple[str, ...]
    victims_before: tuple[str, ...]


class Replay(msgspec.Struct):
    """What a replay came to so far; `first` and `last` are the times that it is to cover."""

    rounds: int = 0
    decisions: int = 0  # of which something was done
    differing: int = 0
    first: str = ""
    last: str = ""


Change = Callable[[Case], Case]


def replayed(
    recording: Recording, totals: Replay, change: Change | None = None, first: int = 0, last: int | None = None
) -> Iterator[ReplayedRound]:
    """Yield the rounds worth a line, and count all of them in `totals`.

    Each round is decided by itself, from what the agent remembered then: under other settings an eviction that would
    have come earlier does not change the rounds after it.

    Args:
        recording: that is read.
        totals: what it comes to.
        change: returns a round's case under other settings; None: decided as it was.
        first: place of the first round.
        last: of the one behind the last; None: all.

    Raises:  ConfigError: a NodeSLO, ConfigMap or quantity is unusable.
    """
    times_ns = recording.times_ns[first:last]
    if times_ns:
        totals.first, totals.last = time_text(times_ns[0]), time_text(times_ns[-1])
    with without_collector():
        yield from _replayed(recording, totals, change, first, last)


def _replayed(
    recording: Recording, totals: Replay, change: Change | None, first: int, last: int | None
) -> Iterator[ReplayedRound]:
    again, before = DecidesAgain(), DecidesAgain()
    for number, each in enumerate(recording.rounds(first, last), start=first + 1):
        totals.rounds += 1
        decision = again.decide(each.tick if change is None else changed(each.tick, change))
        is_same = each.is_same(decision)
        is_decision = each.is_decision or decision.carried is not None
        totals.decisions += is_decision
        if not (is_decision or (change is None and not is_same)):
            continue
        was = decision if is_same else before.decide(each.tick)
        if change is not None:
            is_same = _victims(was) == _victims(decision) and was.is_short == decision.is_short
        totals.differing += not is_same
        sentence = (decision.carried.plan if decision.carried else decision.plan).sentence
        yield ReplayedRound(
            number, time_text(each.wall_ns), is_decision, is_same, sentence, _victims(decision), _victims(was)
        )


def changed(tick: TickFrame, change: Change) -> TickFrame:
    """Return a round under other settings."""
    case = change(case_of_tick(tick, "recording"))
    settings = replace(tick.settings, eviction=case.eviction, strategies=case.strategies)
    return replace(tick, frame=case.frame, settings=settings)


def _victims(decision: TickDecision) -> tuple[str, ...]:
    carried = decision.carried
    return (
        tuple(f"{each.candidate.namespace}/{each.candidate.name}" for each in carried.plan.victims) if carried else ()
    )


def change_of(
    files: Sequence[tuple[str, bytes]], entries: Sequence[str], feature_gates: Sequence[str]
) -> Change | None:
    """Return what decides a case under other settings, as `koordebpf plan` does; None: there are none."""
    if not (files or entries or feature_gates):
        return None

    def change(case: Case) -> Case:
        for path, raw in files:
            case = with_file(case, path, raw)
        return with_feature_gates(with_entries(case, entries), feature_gates)

    return change
