"""From which eviction a pause counts."""

from __future__ import annotations

from koordebpf.state.decision_memory import LastEvictions


def test_memory_and_cpu_have_each_their_last_one() -> None:
    last = LastEvictions()
    assert (last.last_ns(for_cpu=False), last.last_ns(for_cpu=True)) == (None, None)
    last = last.after("a", 1, for_cpu=True).after("b", 2, for_cpu=False).after("c", 3, for_cpu=True)
    assert (last.last_ns(for_cpu=False), last.last_ns(for_cpu=True)) == (2, 3)


def test_who_stays_begins_no_pause_and_who_went_with_it_keeps_its_own() -> None:
    last = LastEvictions().after("a", 1, for_cpu=True).after("a", 5, for_cpu=True).after("b", 5, for_cpu=True)
    assert last.without("a", 5).last_ns(for_cpu=True) == 5
    last = last.without("a", 5).without("b", 5)
    assert last.last_ns(for_cpu=True) == 1
    assert last.without("a", 1).last_ns(for_cpu=True) is None


def test_it_does_not_grow() -> None:
    last = LastEvictions()
    for at_ns in range(1000):
        last = last.after("a", at_ns, for_cpu=at_ns % 2 == 0)
    assert len(last.sent) == 64
    assert (last.last_ns(for_cpu=True), last.last_ns(for_cpu=False)) == (998, 999)
