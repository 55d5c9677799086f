"""Which evictions count as having helped."""

from __future__ import annotations

from koordebpf.act.guards.effectiveness import Usefulness

EMPTY = Usefulness()


def told(*credits: int, used: int = 1000, at_ns: int = 10) -> Usefulness:
    state = EMPTY
    for number, credit in enumerate(credits):
        state = state.told(f"p{number}", credit_bytes=credit, used_bytes=used, now_ns=at_ns)
    return state


def test_half_of_the_promise_is_help_and_less_is_none():
    assert told(100).judged(["p0"], [], used_bytes=950, now_ns=20) == Usefulness((), 0, None)
    assert told(100).judged(["p0"], [], used_bytes=951, now_ns=20) == Usefulness((), 1, 20)
    assert told(100).judged(["p0"], [], used_bytes=1500, now_ns=20).useless == 1


def test_what_never_comes_back_is_no_help():
    state = told(100).judged([], ["p0"], used_bytes=0, now_ns=20)
    assert (state.useless, state.useless_ns, state.awaited) == (1, 20, ())


def test_a_round_is_judged_by_all_it_promised_whenever_it_comes_back():
    both = told(100, 100)
    # GIVEN the use fell by 100: enough for both together, and for the first alone
    assert both.judged(["p0", "p1"], [], used_bytes=900, now_ns=20).useless == 0
    # WHEN the second comes back later, what the first gave does not count for it again
    first = both.judged(["p0"], [], used_bytes=930, now_ns=20)
    assert (first.useless, [each.uid for each in first.awaited]) == (0, ["p1"])
    assert first.judged(["p1"], [], used_bytes=930, now_ns=30).useless == 1
    assert first.judged(["p1"], [], used_bytes=900, now_ns=30).useless == 0


def test_one_that_helped_ends_the_row():
    state = EMPTY
    for number in range(2):
        state = state.told(f"a{number}", credit_bytes=100, used_bytes=1000, now_ns=number)
        state = state.judged([f"a{number}"], [], used_bytes=1000, now_ns=number)
    assert state.useless == 2
    state = state.told("b", credit_bytes=100, used_bytes=1000, now_ns=5)
    assert state.judged(["b"], [], used_bytes=900, now_ns=6).useless == 0


def test_who_did_not_go_or_went_for_others_teaches_nothing():
    assert told(100).withdrawn("p0").judged(["p0"], [], used_bytes=2000, now_ns=20) == EMPTY
    assert told(100).judged(["somebody"], ["else"], used_bytes=2000, now_ns=20) == told(100)
    # An eviction for what pods ask for is judged by its time only.
    assert told(0).judged(["p0"], [], used_bytes=2000, now_ns=20).useless == 0
    assert told(0).judged([], ["p0"], used_bytes=0, now_ns=20).useless == 1


def test_the_late_count_beside_those_that_came_back():
    state = told(100, 100).judged(["p0"], ["p1"], used_bytes=900, now_ns=20)
    assert state.useless == 1
