"""How often a file that another process writes is corrected, and when it is left to it."""

from __future__ import annotations

import pytest

from koordebpf.act.writer.foreign import Corrections, ForeignPolicy
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.units import NS_PER_S

KEY, OTHER = ("be", CgroupFile.CPU_QUOTA), ("ls", CgroupFile.CPU_QUOTA)
HOUR_NS = 3600 * NS_PER_S


@pytest.fixture
def corrections() -> Corrections:
    return Corrections(ForeignPolicy(corrections_per_hour=2, resets_per_hour=3))


@pytest.mark.parametrize(("is_reset", "most"), [(False, 2), (True, 3)])
def test_a_file_is_corrected_so_often_and_then_yielded_for_an_hour(
    corrections: Corrections, is_reset: bool, most: int
) -> None:
    assert [corrections.may_correct(KEY, now_ns, is_reset=is_reset) for now_ns in range(most + 1)] == [
        *[True] * most,
        False,
    ]
    assert corrections.yielded == {KEY: most + HOUR_NS}
    assert corrections.is_yielded(KEY, most + HOUR_NS - 1)
    assert not corrections.is_yielded(KEY, most + HOUR_NS)
    assert corrections.yielded == {}


def test_resets_and_corrections_are_counted_apart_and_so_is_each_file(corrections: Corrections) -> None:
    for key in (KEY, OTHER):
        for is_reset in (False, True):
            assert all(corrections.may_correct(key, 0, is_reset=is_reset) for _ in range(2))
    assert not corrections.is_yielded(KEY, 0)


def test_a_correction_counts_for_an_hour(corrections: Corrections) -> None:
    assert corrections.may_correct(KEY, 0)
    assert corrections.may_correct(KEY, 1)
    assert corrections.may_correct(KEY, HOUR_NS)
    assert not corrections.may_correct(KEY, HOUR_NS)


def test_a_file_that_is_yielded_no_more_is_forgotten_by_whichever_is_corrected_next(corrections: Corrections) -> None:
    for _ in range(3):
        corrections.may_correct(KEY, 0)
    corrections.may_correct(OTHER, HOUR_NS - 1)
    assert KEY in corrections.yielded
    corrections.may_correct(OTHER, HOUR_NS)
    assert KEY not in corrections.yielded


def test_by_default_two_minutes_of_disagreement_are_no_accident_and_systemd_may_reset_more_often() -> None:
    corrections = Corrections(ForeignPolicy())
    assert sum(corrections.may_correct(KEY, 0) for _ in range(2000)) == 12
    assert sum(corrections.may_correct(OTHER, 0, is_reset=True) for _ in range(2000)) == 1200
