"""Whatever jobs come and whatever is set: a simulated node adds up, and one of the same settings is the real one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as some

from koordebpf.decision.what_if.simulation import Simulation
from koordebpf.decision.what_if.variant import Variant
from tests.support.values.played_node import Job, Played, play

SECONDS = 40
JOBS = some.lists(
    some.builds(
        lambda number, start, lasts, mib, rate: Job(f"job-{number}", start, start + lasts, mib, rate),
        some.integers(0, 10_000), some.integers(0, 30), some.integers(1, 40),
        some.integers(1, 500), some.integers(1, 200),
    ),
    max_size=8, unique_by=lambda job: job.name,
)  # fmt: skip
MARKS = some.tuples(some.integers(35, 100), some.integers(5, 30)).map(lambda each: (each[0], each[0] - each[1]))


def simulated(rounds: list[Played], marks: tuple[int, int] | None) -> Simulation:
    fields = {} if marks is None else dict(
        zip(("memoryEvictThresholdPercent", "memoryEvictLowerPercent"), marks, strict=True)
    )  # fmt: skip
    run = Simulation([Variant("x", fields)])
    for each in rounds:
        run.observe(each.tick)
    return run


@settings(max_examples=30, deadline=None)
@given(JOBS, MARKS)
def test_its_own_settings_come_to_what_happened(jobs, marks):
    rounds = list(play(jobs, SECONDS, *marks))
    run = simulated(rounds, None)
    (found,) = run.results
    assert [each.name for each in found.listed] == [name for each in rounds for name in each.evicted]
    assert (found.above_ns, found.stall_ns, found.held_ns) == (run.recorded.above_ns, run.recorded.stall_ns, 0)


@settings(max_examples=30, deadline=None)
@given(JOBS, MARKS, MARKS, some.booleans())
def test_any_other_settings_add_up(jobs, marks, others, enforce):
    rounds = list(play(jobs, SECONDS, *marks, enforce=enforce))
    run = simulated(rounds, others)
    (found,) = run.results
    passed_ns = run.recorded.passed_ns
    assert found.evictions == len(found.listed)
    assert found.freed_bytes == sum(each.freed_bytes for each in found.listed)
    assert 0 <= found.held_ns <= found.apart_ns <= passed_ns
    assert 0 <= found.above_ns <= passed_ns and 0 <= found.unseen_ns <= passed_ns
    if not found.evictions and not run.recorded.evictions:
        assert found.apart_ns == 0
    if not enforce:  # what is not evicted really cannot come back
        uids = [each.uid for each in found.listed]
        assert len(uids) == len(set(uids))
