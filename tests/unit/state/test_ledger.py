"""Who is charged with a stall: small stories, one cgroup at a time."""

from __future__ import annotations

import msgspec
import pytest

from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.policy.decide import decide
from koordebpf.state.build import view_of_frame
from koordebpf.state.measured import LedgerView, NodeForecast, Party, PsiLine, StallShares, TimeTo
from koordebpf.state.stalls.ledger import OTHERS, OWN_LIMIT, UNATTRIBUTED, Ledger, Usage, split
from koordebpf.state.stalls.windows import StallGrowth
from koordebpf.units import MIB
from tests.support.values.builders import frame, pod

S = 1_000_000_000
MS = 1_000_000
WEB = Party("web", "pod", "web/shop", uid="web")
WEB_APP = Party("web/app", "pod", "web/shop", "app", "web")
HOG = Party("hog", "pod", "spark/hog", uid="hog")
CAT = Party("cat", "pod", "spark/cat", uid="cat")
LOGS = Party("system.slice/logs.service", "cgroup", "system.slice/logs.service")

SHARES = StallShares(PsiLine(1.5, 0.5, 0.0, 7), None, derived=True, some_at_most=PsiLine(2.0, 1.0, 0.0, 9))


def holds(**mib: int | tuple[int, int]) -> list[Usage]:
    """Return what each holds, in MiB; a pair is usage and request."""
    parties = {"web": WEB, "hog": HOG, "cat": CAT, "logs": LOGS}
    pairs = {name: each if isinstance(each, tuple) else (each, 0) for name, each in mib.items()}
    return [Usage(parties[name], usage * MIB, request * MIB) for name, (usage, request) in pairs.items()]


def charged(view: LedgerView) -> dict[tuple[str, str], int]:
    return {(row.victim.label, row.cause.label): row.ns for row in view.rows}


def test_a_shortage_is_charged_to_those_that_grew_by_how_much_they_did() -> None:
    ledger = Ledger()
    ledger.push(1 * S, {}, holds(web=100, hog=100, cat=100, logs=10))
    ledger.push(2 * S, {WEB_APP: StallGrowth(global_ns=80 * MS)}, holds(web=100, hog=400, cat=190, logs=20))
    view = ledger.view(2 * S)
    assert charged(view) == {
        ("web/shop/app", "spark/hog"): 60 * MS,
        ("web/shop/app", "spark/cat"): 18 * MS,
        ("web/shop/app", "system.slice/logs.service"): 2 * MS,
    }
    assert (view.total_ns, view.unattributed_ns) == (80 * MS, 0)


def test_growth_that_was_promised_is_no_cause() -> None:
    ledger = Ledger()
    ledger.push(1 * S, {}, holds(hog=(100, 500), cat=(100, 150)))
    ledger.push(2 * S, {WEB: StallGrowth(global_ns=10)}, holds(hog=(500, 500), cat=(151 + 2, 150)))
    assert charged(ledger.view(2 * S)) == {("web/shop", "spark/cat"): 10}


def test_a_pod_can_be_its_own_cause() -> None:
    ledger = Ledger()
    ledger.push(1 * S, {}, holds(web=100))
    ledger.push(2 * S, {WEB: StallGrowth(global_ns=10)}, holds(web=200))
    assert charged(ledger.view(2 * S)) == {("web/shop", "web/shop"): 10}


def test_a_limit_is_ones_own_and_no_other_pods_though_others_grew() -> None:
    ledger = Ledger()
    ledger.push(1 * S, {}, holds(hog=100))
    stall = StallGrowth(global_ns=3, limit_ns=20, other_limit_ns=5, other_global_ns=4)
    charges = ledger.push(2 * S, {WEB: stall}, holds(hog=900))
    assert [(each.cause, each.ns) for each in charges] == [(OWN_LIMIT, 25), (HOG, 7)]


@pytest.mark.parametrize(
    ("stall", "own_ns"),
    [
        (StallGrowth(compaction_ns=7), 0),
        (StallGrowth(compaction_ns=7, limit_ns=1), 8),
        (StallGrowth(compaction_ns=7, other_limit_ns=1), 8),
        (StallGrowth(compaction_ns=7, limit_ns=1, global_ns=1), 1),
    ],
)
def test_compaction_counts_for_the_limit_only_where_nothing_else_is_short(stall: StallGrowth, own_ns: int) -> None:
    assert stall.own_limit_ns == own_ns


def test_without_growth_it_is_unattributed() -> None:
    ledger = Ledger()
    ledger.push(1 * S, {}, holds(hog=900))
    assert ledger.push(2 * S, {WEB: StallGrowth(global_ns=10)}, holds(hog=900))[0].cause == UNATTRIBUTED
    ledger.push(3 * S, {WEB: StallGrowth(global_ns=5)}, holds(hog=901))  # no more than the CPUs charge ahead
    view = ledger.view(3 * S)
    assert (view.total_ns, view.unattributed_ns) == (15, 15)


def test_what_was_there_at_the_start_is_no_growth_and_what_is_born_later_is() -> None:
    ledger = Ledger()
    ledger.push(1 * S, {}, holds(hog=900))
    ledger.push(2 * S, {WEB: StallGrowth(global_ns=10)}, holds(hog=900, cat=50))
    assert charged(ledger.view(2 * S)) == {("web/shop", "spark/cat"): 10}


def test_growth_is_remembered_for_a_window_and_no_longer() -> None:
    ledger = Ledger(window_ns=10 * S)
    ledger.push(1 * S, {}, holds(hog=0))
    ledger.push(2 * S, {}, holds(hog=500))
    for at in range(3, 15):
        ledger.push(at * S, {WEB: StallGrowth(global_ns=1)}, holds(hog=500))
    causes = [row.cause for row in ledger.view(14 * S).rows]
    assert causes == [HOG, UNATTRIBUTED]
    assert {row.cause: row.ns for row in ledger.view(14 * S).rows} == {HOG: 7, UNATTRIBUTED: 3}


def test_memory_that_rises_and_falls_within_a_slice_counts_with_its_rise() -> None:
    ledger = Ledger()
    ledger.push(10 * S, {}, holds(hog=100, cat=100))
    ledger.push(10 * S + 200 * MS, {}, holds(hog=400, cat=50))
    ledger.push(10 * S + 400 * MS, {}, holds(hog=100, cat=350))
    ledger.push(10 * S + 600 * MS, {WEB: StallGrowth(global_ns=2)}, holds(hog=100, cat=100))
    assert charged(ledger.view(11 * S)) == {("web/shop", "spark/hog"): 1, ("web/shop", "spark/cat"): 1}


def test_a_dead_pod_keeps_its_name_while_it_is_charged() -> None:
    ledger = Ledger(window_ns=10 * S)
    ledger.push(1 * S, {}, holds(hog=0, web=1))
    ledger.push(2 * S, {WEB_APP: StallGrowth(global_ns=10)}, holds(hog=100, web=1))
    for at in range(3, 12):
        ledger.push(at * S, {}, holds())
        (row,) = ledger.view(at * S).rows
        assert (row.victim, row.cause, row.ns) == (WEB_APP, HOG, 10)
    assert ledger.view(12 * S).rows == ()


def test_a_name_that_becomes_known_later_is_shown() -> None:
    ledger = Ledger()
    unknown = Party("hog", "pod", "hog", uid="hog")
    ledger.push(1 * S, {}, [])
    ledger.push(2 * S, {}, [Usage(unknown, 0)])
    ledger.push(3 * S, {WEB: StallGrowth(global_ns=1)}, [Usage(unknown, 50 * MIB)])
    ledger.push(4 * S, {WEB: StallGrowth(global_ns=1)}, holds(hog=60))
    assert charged(ledger.view(4 * S)) == {("web/shop", "spark/hog"): 2}


def test_since_when_is_the_first_slice_without_a_break() -> None:
    ledger = Ledger()
    for at in (1, 2, 3, 5, 9, 10, 11):  # a slice without a push, as pushes drift, is no break; three are
        ledger.push(at * S + 1, {WEB: StallGrowth(limit_ns=1)}, [])
    (row,) = ledger.view(20 * S).rows
    assert (row.ns, row.since_ns, row.last_ns) == (7, 9 * S, 12 * S)


def test_a_table_that_is_full_sums_up_the_rest() -> None:
    ledger = Ledger()
    crowd = {Party(f"v{i}", "cgroup", f"v{i}"): StallGrowth(limit_ns=1000 + i) for i in range(600)}
    ledger.push(1 * S, crowd, [])
    view = ledger.view(1 * S)
    assert len(view.rows) == 65
    assert sum(row.ns for row in view.rows) == view.total_ns == sum(stall.limit_ns for stall in crowd.values())
    assert any(row.victim == OTHERS and row.cause == OTHERS for row in view.rows)


def test_of_many_causes_the_largest_have_names() -> None:
    ledger = Ledger()
    crowd = [Party(f"c{i}", "cgroup", f"c{i}") for i in range(20)]
    ledger.push(1 * S, {}, [Usage(each, 0) for each in crowd])
    ledger.push(2 * S, {WEB: StallGrowth(global_ns=2_100)}, [Usage(c, (i + 2) * MIB) for i, c in enumerate(crowd)])
    rows = ledger.view(2 * S).rows
    assert {row.cause.name for row in rows} == {*(f"c{i}" for i in range(12, 20)), "others"}
    assert sum(row.ns for row in rows) == 2_100


def test_a_view_has_a_row_for_each_victim_and_cause() -> None:
    ledger = Ledger()
    ledger.push(1 * S, {}, holds(hog=0))
    ledger.push(2 * S, {WEB_APP: StallGrowth(global_ns=10), HOG: StallGrowth(limit_ns=3)}, holds(hog=100))
    view = ledger.view(2 * S)
    assert [(row.victim, row.cause.name, row.ns) for row in view.rows] == [
        (WEB_APP, "spark/hog", 10),
        (HOG, "own limit", 3),
    ]


def test_growth_is_looked_at_four_times_a_slice() -> None:
    ledger = Ledger()
    ledger.push(1 * S, {}, [])
    assert [ledger.is_due(1 * S + at * MS) for at in (0, 249, 250, 999)] == [False, False, True, True]


def test_a_window_is_whole_slices() -> None:
    with pytest.raises(ValueError, match="multiple of slice_ns"):
        Ledger(window_ns=S + 1)


def test_parts_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="sum above zero"):
        split(5, [0, 0])


def test_a_frame_carries_the_ledger_to_the_view_and_back() -> None:
    ledger = Ledger()
    ledger.push(1 * S, {}, holds(hog=0))
    ledger.push(2 * S, {WEB_APP: StallGrowth(global_ns=10)}, holds(hog=100))
    recorded = frame([pod("a", anon=4)], used=850)
    node = msgspec.structs.replace(
        recorded.measured.node, forecast=NodeForecast(threshold=TimeTo(1, 2, None)), shares=SHARES
    )
    (measure,) = recorded.measured.pods
    measure = msgspec.structs.replace(measure, shares=SHARES, forecast=TimeTo(3, 4, 5))
    measured = msgspec.structs.replace(recorded.measured, ledger=ledger.view(2 * S), node=node, pods=(measure,))
    read = decode_frame(encode_frame(msgspec.structs.replace(recorded, measured=measured)), "f")
    view = view_of_frame(read)
    assert view.measured.ledger == ledger.view(2 * S)
    assert view.forecast == node.forecast
    assert (view.pods[0].shares, view.pods[0].forecast) == (SHARES, TimeTo(3, 4, 5))
    (feature,) = decide(view).features
    assert [each.caused_ns for each in feature.candidates] == [0]  # the hog that grew is no pod of this frame
