"""When silence means that a program runs no more."""

import msgspec
import pytest

from koordebpf.kernel.bpf.probe_health import silent_programs
from koordebpf.kernel.proc.vmstat import VmstatValues

BEFORE = VmstatValues(allocstall=1_000, compact_stall=1_000, pageoutrun=7, oom_kill=1_000, pgscan=5)
SEEN = {"reclaim": 50, "compaction": 50, "oom_kill": 50}
ROWS = [
    ("allocstall", "reclaim", "on_mm_vmscan_direct_reclaim_begin"),
    ("compact_stall", "compaction", "on_mm_compaction_begin"),
    ("oom_kill", "oom_kill", "on_mark_victim"),
]


def moved(row: str, by: int) -> VmstatValues:
    return msgspec.structs.replace(BEFORE, **{row: 1_000 + by})


@pytest.mark.parametrize(("row", "counter", "program"), ROWS)
def test_the_kernel_counts_and_the_program_does_not(row: str, counter: str, program: str) -> None:
    ((silent, reason),) = silent_programs(BEFORE, SEEN, moved(row, 23), SEEN)
    assert silent == program
    assert reason == f"the kernel counted 23 × {row} and the program saw none"


@pytest.mark.parametrize(("row", "counter", "program"), ROWS)
def test_one_that_was_seen_is_enough(row: str, counter: str, program: str) -> None:
    assert silent_programs(BEFORE, SEEN, moved(row, 1_000), {**SEEN, counter: 51}) == []


@pytest.mark.parametrize("row", [row for row, _, _ in ROWS])
def test_what_may_be_in_flight_says_nothing(row: str) -> None:
    assert silent_programs(BEFORE, SEEN, moved(row, 22), SEEN) == []


def test_a_row_that_this_kernel_has_not_says_nothing() -> None:
    without = VmstatValues(allocstall=1_000, compact_stall=None, pageoutrun=None, oom_kill=None, pgscan=None)
    assert silent_programs(without, SEEN, without, SEEN) == []
