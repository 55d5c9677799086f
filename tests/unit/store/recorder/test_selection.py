from __future__ import annotations

from koordebpf.store.recorder.rounds import EncodedRound, RoundEncoder
from koordebpf.store.recorder.stores import Selection
from koordebpf.store.recorder.values import Pace
from koordebpf.units import NS_PER_S
from tests.support.values.builders import NOW_NS
from tests.support.values.rounds import encoded, wall_ns

ENCODER = RoundEncoder()


def second_of(made: EncodedRound) -> int:
    return (made.wall_ns - wall_ns(0)) // NS_PER_S


def kept(
    selection: Selection, seconds: list[float], decisions: frozenset[float] = frozenset()
) -> dict[Pace, list[int]]:
    found: dict[Pace, list[int]] = {pace: [] for pace in Pace}
    for second in seconds:
        for pace, made in selection.select(encoded(second, ENCODER, used_mib=900 if second in decisions else 500)):
            found[pace].append(second_of(made))
    return found


def test_each_second_and_each_fifth_has_a_round() -> None:
    found = kept(Selection(), [quarter / 4 for quarter in range(80)])
    assert found[Pace.SECONDS] == list(range(20))
    assert found[Pace.DAY] == [0, 5, 10, 15]
    assert found[Pace.DECISIONS] == []


def test_a_round_that_comes_some_milliseconds_early_counts() -> None:
    found = kept(Selection(), [second - 0.05 * (second % 2) for second in range(12)])
    assert len(found[Pace.SECONDS]) == 12


def test_around_a_decision_each_round_of_30_s_is_kept() -> None:
    found = kept(Selection(), list(range(100)), frozenset({50}))
    assert found[Pace.DECISIONS] == list(range(20, 81))


def test_the_windows_of_two_decisions_join() -> None:
    found = kept(Selection(), list(range(120)), frozenset({40, 60}))
    assert found[Pace.DECISIONS] == list(range(10, 91))


def test_what_waited_is_kept_as_it_was() -> None:
    selection = Selection()
    before = encoded(1, ENCODER)
    selection.select(before)
    pace, first = selection.select(encoded(2, ENCODER, used_mib=900))[-2]
    assert (pace, first) == (Pace.DECISIONS, before)


def test_what_waits_is_bounded_in_bytes() -> None:
    selection, encoder = Selection(), RoundEncoder()
    rounds = [encoded(number / 100, encoder, pods=110, seed=number) for number in range(400)]
    for made in rounds:
        selection.select(made)
    found = [
        each for pace, each in selection.select(encoded(4, encoder, pods=110, used_mib=900)) if pace is Pace.DECISIONS
    ]
    assert 40 < len(found) < 200
    assert found[-2] == rounds[-1]


def test_an_oom_kill_is_a_reason_too() -> None:
    selection = Selection()
    selection.want_around(NOW_NS)
    found = kept(selection, list(range(40)))
    assert found[Pace.DECISIONS] == list(range(31))
