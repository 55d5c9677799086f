"""What is said of recordings and replays, and what happens first and last in several of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.ring import Run
from koordebpf.store.recorder.rounds import RoundEncoder
from koordebpf.store.recorder.stores import FileStore
from koordebpf.tools.recorder.pages import (
    RecordingSummary,
    ShardSummary,
    lines_of,
    summary_of,
    summary_page,
    totals_line,
)
from koordebpf.tools.recorder.redact import redact_recording
from koordebpf.tools.recorder.replay import Replay, ReplayedRound, change_of
from koordebpf.tools.what_if.simulate import simulated
from koordebpf.units import MIB
from tests.support.values.rounds import encoded

SAME = ReplayedRound(6, "10:00", True, True, "evicting a", ("ns/a",), ("ns/a",))
OTHER = replace(SAME, is_same=False, victims=(), victims_before=("ns/a", "ns/b"))


@pytest.mark.parametrize(
    ("each", "is_changed", "more"),
    [
        (SAME, False, ""),
        (SAME, True, ""),
        (OTHER, False, "\n  DIFFERS from what was recorded"),
        (OTHER, True, "\n  victims: none; before: ns/a, ns/b"),
        (replace(OTHER, victims=("ns/a",), victims_before=()), True, "\n  victims: ns/a; before: none"),
    ],
)
def test_a_round_says_how_it_differs(each: ReplayedRound, is_changed: bool, more: str) -> None:
    assert lines_of(each, is_changed=is_changed) == f"10:00  round 6: evicting a{more}"


@pytest.mark.parametrize(
    ("differing", "is_changed", "said"),
    [
        (0, False, "each is decided as it was"),
        (1, False, "1 decided otherwise than they were"),
        (0, True, "0 decided otherwise under these settings"),
    ],
)
def test_totals_say_how_many_differ(differing: int, is_changed: bool, said: str) -> None:
    totals = Replay(rounds=3, decisions=2, differing=differing, first="a", last="b")
    of = "3 rounds from a to b, 2 of which something was done"
    assert totals_line(totals, is_changed=is_changed) == f"{of}; {said}"
    assert totals_line(Replay(), is_changed=is_changed) == "no round"
    assert (Replay().decisions, Replay().differing) == (0, 0)


def test_nothing_is_changed_where_nothing_is_given() -> None:
    assert change_of((), (), ()) is None
    for given in ([("x", b"")], (), ()), ((), ["a=1"], ()), ((), (), ["A=true"]):
        assert change_of(*given) is not None


SHARD = ShardSummary("f", "r1", "n1", "each", "1.0", False, 3, "a", "b")
SUMMARY = RecordingSummary(3, "a", "b", ("d1", "d2"), {"B": 1, "A": 2}, 4, (SHARD, replace(SHARD, redacted=True)), ())


def test_a_summary_has_its_files_events_and_decisions() -> None:
    assert summary_page(SUMMARY).splitlines() == [
        "3 rounds from a to b, 4 samples between them",
        "  f: 3 rounds, each, run r1 on n1",
        "  f: 3 rounds, each, run r1 on n1, redacted",
        "events: 2 A, 1 B",
        "2 rounds of which something was done",
        "  1: d1",
        "  2: d2",
    ]


@pytest.mark.parametrize(("count", "first"), [(20, 1), (21, 2), (25, 6)])
def test_of_many_decisions_the_last_20_are_listed_with_their_numbers(count: int, first: int) -> None:
    summary = replace(SUMMARY, decisions=tuple(f"d{at}" for at in range(1, count + 1)), problems=("cut",))
    listed = [line.strip() for line in summary_page(summary).splitlines()[5:]]
    assert listed == [*(f"{at}: d{at}" for at in range(first, count + 1)), "passed over: cut"]


def recording(path: Path, *seconds: int, sample: bytes = b"") -> Recording:
    store, encoder = FileStore(path, Run("0123abcd", "n"), MIB), RoundEncoder()
    for second in seconds:
        store.add(encoded(second, encoder), sample, [])
    store.close()
    return Recording(path)


def test_a_summary_is_of_the_first_and_the_last_round(tmp_path: Path) -> None:
    found = summary_of(recording(tmp_path / "x", 3, 4, 9))
    assert (found.rounds, found.first, found.last) == (3, "2027-01-15T08:00:03.000Z", "2027-01-15T08:00:09.000Z")
    (shard,) = found.shards
    assert (shard.rounds, shard.first, shard.last) == (3, found.first, found.last)


def test_a_simulation_covers_all_recordings_in_any_order(tmp_path: Path) -> None:
    early, late = recording(tmp_path / "a", 0, 1), recording(tmp_path / "b", 60, 61)
    found = simulated([late, early], [])
    assert (found.first, found.last) == ("2027-01-15T08:00:00.000Z", "2027-01-15T08:01:01.000Z")


def test_a_redacted_copy_has_the_samples_between_the_rounds_each_once(tmp_path: Path) -> None:
    made = recording(tmp_path / "x", 0, 1, 2, sample=b"[[1,2,3,null,null,null]]")
    assert redact_recording(made, tmp_path / "y") == "3 rounds; 0 act now and did not before, or the other way round"
    assert list(Recording(tmp_path / "y").samples()) == list(made.samples())
