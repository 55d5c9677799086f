"""When a demo's node crossed its threshold and came back."""

from __future__ import annotations

import pytest

from koordebpf.demo.verdict import Crossing, Usage


def crossing(*used: int) -> Crossing:
    """Sampled at 10 ns, 20 ns and so on; 100 is the threshold, and below 80 it is over."""
    made = Crossing(100, 80)
    for number, each in enumerate(used, start=1):
        made.push(Usage(10 * number, each + 5, each))
    return made


@pytest.mark.parametrize(
    ("used", "crossed_ns", "below_ns"),
    [
        ((), None, None),
        ((50, 99), None, None),
        ((50, 99, 100, 120), 20, None),
        ((50, 79, 100, 80, 79, 50), 20, 50),  # at the lower bound it is not back, and only the first reading counts
        ((50, 100, 70, 120, 60), 10, 30),
        ((100, 50), None, 20),  # there is no reading before it
    ],
)
def test_it_crosses_at_the_last_reading_below_and_is_back_at_the_first_under_the_lower_bound(
    used: tuple[int, ...], crossed_ns: int | None, below_ns: int | None
) -> None:
    made = crossing(*used)
    assert (made.crossed_ns(), made.below_ns) == (crossed_ns, below_ns)


@pytest.mark.parametrize(("seen_ns", "crossed_ns"), [(35, 20), (30, 20), (15, 10), (10, None)])
def test_what_another_saw_earlier_counts(seen_ns: int, crossed_ns: int | None) -> None:
    assert crossing(50, 60, 100).crossed_ns(seen_ns) == crossed_ns


def test_a_crossing_that_another_alone_saw_counts() -> None:
    assert crossing(50, 60, 70).crossed_ns(seen_ns=25) == 20


def test_peaks_are_kept() -> None:
    made = crossing(50, 120, 70)
    assert (made.peak_usage_bytes, made.peak_used_bytes) == (125, 120)
