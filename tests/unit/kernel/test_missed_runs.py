"""Which ends that no program saw stay open."""

import pytest

from koordebpf.kernel.bpf.probe_health import OpenEnds


@pytest.mark.parametrize(
    ("looks", "stays"),
    [
        ([0, 0, 0], []),
        ([1, 0, 1, 0], []),  # its thread closes each before the next look
        ([1, 1], [1]),
        ([1, 1, 1, 1], [1]),  # reported once
        ([1, 3, 2, 2], [1, 2]),
        ([5, 7, 6, 9, 8], [1, 2, 4]),  # what is lost all the time
        ([-1, -1, -1], [1]),  # lost, and the kernel does not count it
        ([2, 2, 1, 1], [1, 3]),
    ],
)
def test_what_stays_open_is_reported_once(looks: list[int], stays: list[int]) -> None:
    ends = OpenEnds()
    assert [number for number, still_open in enumerate(looks) if ends.push(still_open)] == stays
