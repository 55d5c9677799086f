"""Whatever stalls and grows, the ledger's rows sum to what was stalled."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from koordebpf.state.measured import Party
from koordebpf.state.stalls.ledger import UNATTRIBUTED, Ledger, Usage, split
from koordebpf.state.stalls.windows import StallGrowth
from koordebpf.units import MIB

S = 1_000_000_000
PARTIES = [Party(f"p{i}", "pod", f"ns/p{i}", uid=f"p{i}") for i in range(12)]
NS = st.integers(0, 10**12)
GROWTHS = st.builds(StallGrowth, global_ns=NS, limit_ns=NS, compaction_ns=NS, other_global_ns=NS, other_limit_ns=NS)
STALLS = st.dictionaries(st.sampled_from(PARTIES), GROWTHS, max_size=3)
USAGES = st.dictionaries(st.sampled_from(PARTIES), st.integers(0, 1 << 40), max_size=6).map(
    lambda held: [Usage(party, held[party], 100 * MIB) for party in held]
)
PUSHES = st.lists(st.tuples(st.integers(0, 5 * S), STALLS, USAGES), max_size=12)


@given(st.integers(0, 10**15), st.lists(st.integers(0, 10**12), min_size=1, max_size=20).filter(any))
def test_parts_are_whole_and_fair(total, weights):
    parts = split(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - Fraction(total * weight, sum(weights))) < 1
        assert weight or not part


@settings(max_examples=60)
@given(PUSHES, st.sampled_from([(60 * S, S), (10 * S, S), (4 * S, 2 * S)]))
def test_rows_sum_to_what_stalled_in_the_window(pushes, shape):
    window_ns, slice_ns = shape
    ledger = Ledger(window_ns, slice_ns)
    now_ns = 100 * S
    stalled: list[tuple[int, int]] = []
    for wait_ns, stalls, usages in pushes:
        now_ns += wait_ns
        added = sum(stall.total_ns for stall in stalls.values())
        charges = ledger.push(now_ns, stalls, usages)
        assert sum(charge.ns for charge in charges) == added
        stalled.append((now_ns // slice_ns, added))
        view = ledger.view(now_ns)
        oldest = now_ns // slice_ns - window_ns // slice_ns + 1
        assert view.total_ns == sum(ns for number, ns in stalled if number >= oldest)
        assert sum(row.ns for row in view.rows) == view.total_ns
        named = view.rows[:64]
        unattributed_ns = sum(row.ns for row in named if row.cause == UNATTRIBUTED)
        assert unattributed_ns == view.unattributed_ns or (unattributed_ns < view.unattributed_ns and view.rows[64:])
        assert all(row.since_ns < row.last_ns and row.ns > 0 for row in view.rows)
        assert [row.ns for row in named] == sorted((row.ns for row in named), reverse=True)
    assert ledger.view(now_ns + 2 * window_ns).rows == ()


@settings(max_examples=60)
@given(PUSHES)
def test_only_who_grew_beyond_its_request_is_a_cause(pushes):
    ledger = Ledger()
    now_ns = 100 * S
    most: dict[str, int] = {}
    for wait_ns, stalls, usages in pushes:
        now_ns += wait_ns
        for usage in usages:
            most[usage.party.id] = max(most.get(usage.party.id, 0), usage.usage_bytes)
        for charge in ledger.push(now_ns, stalls, usages):
            if charge.cause.kind == "pod":
                assert most[charge.cause.id] > 100 * MIB


@settings(max_examples=10)
@given(st.integers(1, 400))
def test_the_table_is_bounded_by_what_lives_in_the_window(pods):
    ledger = Ledger(window_ns=4 * S)
    for at in range(8):
        born = [Party(f"{at}-{i}", "pod", f"ns/{at}-{i}", uid=f"{at}-{i}") for i in range(pods)]
        ledger.push((100 + at) * S, dict.fromkeys(born, StallGrowth(limit_ns=1)), [Usage(each, 1) for each in born])
    assert len(ledger.view(107 * S).rows) <= 65
    assert ledger.view(107 * S).total_ns == 4 * pods
    ledger.push(200 * S, {}, [])
    assert len(ledger._parties) == 3
    assert not ledger._growing
