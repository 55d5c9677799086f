"""Quantities as text."""

from __future__ import annotations

import pytest

from koordebpf.units import NS_PER_S, format_bytes, format_millicpu, format_ns, format_utc


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1 µs"),
        (999_499, "999 µs"),
        (999_500, "1 ms"),
        (3_420_000, "3.42 ms"),
        (999_600_000, "1 s"),
        (61 * NS_PER_S, "61 s"),
        (999 * NS_PER_S, "999 s"),
        (1_200 * NS_PER_S, "1200 s"),
        (86_400 * NS_PER_S, "86400 s"),
        (-2 * NS_PER_S, "-2 s"),
    ],
)
def test_durations_have_three_digits_and_no_exponent(ns: int, text: str) -> None:
    assert format_ns(ns) == text


def test_sizes_and_cpus() -> None:
    assert [format_bytes(n) for n in (0, 999, 1_000, 1_932_735_283, 5 << 40)] == [
        "0 B",
        "999 B",
        "1.0 KiB",
        "1.8 GiB",
        "5.0 TiB",
    ]
    assert [format_millicpu(n) for n in (0, 1_000, 2_500)] == ["0 CPUs", "1 CPU", "2.5 CPUs"]


def test_a_moment_has_milliseconds_and_ends_in_z() -> None:
    assert [format_utc(wall_s) for wall_s in (0, 1_767_225_600.5, 1_767_225_600.0004)] == [
        "1970-01-01T00:00:00.000Z",
        "2026-01-01T00:00:00.500Z",
        "2026-01-01T00:00:00.000Z",
    ]
