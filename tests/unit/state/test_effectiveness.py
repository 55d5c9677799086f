"""Which evictions count as having helped."""

from __future__ import annotations

from koordebpf.state.decision_memory import Effectiveness

EMPTY = Effectiveness()


def sent(*credits: int, used: int = 1000, at_ns: int = 10) -> Effectiveness:
    state = EMPTY
    for number, credit in enumerate(credits):
        state = state.after(f"p{number}", credit_bytes=credit, used_bytes=used, decided_ns=at_ns)
    return state


def test_half_of_the_promise_is_help_and_less_is_none():
    assert sent(100).judged(["p0"], [], used_bytes=950, now_ns=20) == Effectiveness((), 0, None)
    assert sent(100).judged(["p0"], [], used_bytes=951, now_ns=20) == Effectiveness((), 1, 20)
    assert sent(100).judged(["p0"], [], used_bytes=1500, now_ns=20).ineffective == 1


def test_what_never_comes_back_is_no_help():
    state = sent(100).judged([], ["p0"], used_bytes=0, now_ns=20)
    assert (state.ineffective, state.ineffective_ns, state.awaited) == (1, 20, ())


def test_a_round_is_judged_by_all_it_promised_whenever_it_comes_back():
    both = sent(100, 100)
    # GIVEN the use fell by 100: enough for both together, and for the first alone
    assert both.judged(["p0", "p1"], [], used_bytes=900, now_ns=20).ineffective == 0
    # WHEN the second comes back later, what the first gave does not count for it again
    first = both.judged(["p0"], [], used_bytes=930, now_ns=20)
    assert (first.ineffective, [each.uid for each in first.awaited]) == (0, ["p1"])
    assert first.judged(["p1"], [], used_bytes=930, now_ns=30).ineffective == 1
    assert first.judged(["p1"], [], used_bytes=900, now_ns=30).ineffective == 0


def test_one_that_helped_ends_the_row():
    state = EMPTY
    for number in range(2):
        state = state.after(f"a{number}", credit_bytes=100, used_bytes=1000, decided_ns=number)
        state = state.judged([f"a{number}"], [], used_bytes=1000, now_ns=number)
    assert state.ineffective == 2
    state = state.after("b", credit_bytes=100, used_bytes=1000, decided_ns=5)
    assert state.judged(["b"], [], used_bytes=900, now_ns=6).ineffective == 0


def test_who_did_not_go_or_went_for_others_teaches_nothing():
    assert sent(100).without("p0").judged(["p0"], [], used_bytes=2000, now_ns=20) == EMPTY
    assert sent(100).judged(["another"], ["one"], used_bytes=2000, now_ns=20) == sent(100)
    # An eviction for what pods ask for is judged by its time only.
    assert sent(0).judged(["p0"], [], used_bytes=2000, now_ns=20).ineffective == 0
    assert sent(0).judged([], ["p0"], used_bytes=0, now_ns=20).ineffective == 1


def test_the_late_count_beside_those_that_came_back():
    state = sent(100, 100).judged(["p0"], ["p1"], used_bytes=900, now_ns=20)
    assert state.ineffective == 1
