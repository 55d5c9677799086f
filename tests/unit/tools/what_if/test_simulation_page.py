"""The page of a simulation, from its values: table, plots, doubts; and the page of a validation."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from koordebpf.decision.what_if.simulation import Outcome, Recorded
from koordebpf.tools.what_if.page import simulation_page, validation_page
from koordebpf.tools.what_if.simulate import Compared, Simulated, SimulationResult, Validation
from koordebpf.units import GIB, MIB, NS_PER_S

MINUTE_NS = 60 * NS_PER_S


def configuration(settings: dict[str, Any], evictions: int, problem: str | None = None, **sums: Any) -> Simulated:
    return Simulated(settings=settings, outcome=Outcome(name="", evictions=evictions, **sums), problem=problem)


def page(*configurations: Simulated, **recorded: Any) -> list[str]:
    happened = {
        "rounds": 600,
        "passed_ns": 10 * MINUTE_NS,
        "evictions": 4,
        "freed_bytes": 3 * GIB,
        "above_ns": 90 * NS_PER_S,
        "stall_ns": 5 * NS_PER_S // 2,
        **recorded,
    }
    result = SimulationResult(
        recordings=("a",),
        first="10:00",
        last="10:10",
        recorded=Recorded(**happened),
        configurations=configurations,
        release_ns=NS_PER_S,
        held_ns=NS_PER_S,
    )
    return simulation_page(result).splitlines()


def doubts(*configurations: Simulated, **recorded: Any) -> str:
    return " ".join(" ".join(page(*configurations, **recorded)).split()).partition("is not the recorded one. ")[2]


RECORDED = configuration({}, 5)
SWEPT = (
    configuration({"a": 70}, 10, freed_bytes=GIB // 2, above_ns=MINUTE_NS // 2, apart_ns=6 * MINUTE_NS),
    configuration({"a": 90}, 2, freed_bytes=GIB, above_ns=3 * MINUTE_NS, stall_ns=4 * NS_PER_S),
)


def test_what_happened_stands_above_each_configuration_and_one_setting_is_plotted() -> None:
    lines = page(RECORDED, *SWEPT)
    assert lines[: lines.index("Model: an evicted pod's memory is taken out of later rounds until the recording")] == [
        "600 rounds, 10.0 min of measurements, from 10:00 to 10:10",
        "",
        "a:",
        "                 evictions  GiB freed  minutes above  LS stall s  apart",
        "really happened          4       3.00           1.50        2.50",
        "as recorded              5       0.00           0.00           -    0 %",
        "70                      10       0.50           0.50           -   60 %",
        "90                       2       1.00           3.00        4.00    0 %",
        "",
        "evictions",
        f"  70 {'█' * 71} 10",
        f"  90 {'█' * 14}▎{' ' * 56}  2",
        "",
        "GiB freed",
        f"  70 {'█' * 34}▌{' ' * 34} 0.50",
        f"  90 {'█' * 69} 1.00",
        "",
        "minutes above",
        f"  70 {'█' * 11}▌{' ' * 57} 0.50",
        f"  90 {'█' * 69} 3.00",
        "",
    ]


def test_a_recording_of_one_round_and_without_stalls_has_a_table() -> None:
    lines = page(configuration({}, 0), passed_ns=0, stall_ns=None)
    assert lines[3:5] == [
        "really happened          4       3.00           1.50           -",
        "as recorded              0       0.00           0.00           -    0 %",
    ]


def test_two_settings_with_several_values_are_a_grid_of_each_figure_and_one_that_has_none_a_dash() -> None:
    grid = [configuration({"a": a, "b": b}, a * b) for a in (1, 2) for b in (3, 4)]
    lines = page(RECORDED, *grid[:3], replace(grid[3], problem="no threshold"))
    at = lines.index("evictions, a down, b across")
    assert lines[at + 1 : at + 5] == ["     3  4", "1    3  4", "2    6  -", ""]
    at = lines.index("LS stall s, a down, b across")
    assert lines[at + 1 : at + 4] == ["     3  4", "1    -  -", "2    -  -"]


@pytest.mark.parametrize(
    ("settings", "has_plot"),
    [
        ([{"a": 1}], False),  # one bar says nothing
        ([{"a": 1}, {"a": 2}], True),
        ([{"a": number} for number in range(24)], True),
        ([{"a": number} for number in range(25)], False),
        ([{"a": 1, "b": number} for number in range(3)], True),  # the other is the same everywhere
    ],
)
def test_bars_are_for_two_to_24_configurations(settings: list[dict[str, Any]], has_plot: bool) -> None:
    lines = page(RECORDED, *(configuration(each, 1) for each in settings))
    assert any("█" in line for line in lines) is has_plot
    assert ("No plot: 25 configurations are more than 24." in lines) is (len(settings) == 25)
    assert not any("across" in line for line in lines)


def test_one_that_is_not_in_force_is_named_and_not_plotted() -> None:
    found = [configuration({"a": 1}, 2, problem="no threshold"), configuration({"a": 2}, 3)]
    assert not any("█" in line for line in page(RECORDED, *found))
    assert doubts(RECORDED, *found).endswith(" 1: no threshold")


@pytest.mark.parametrize(
    ("itself", "happened", "said"),
    [
        (5, 4, "Under its own settings the simulation makes 5 evictions, and 4 really happened, +25 %;"),
        (0, 4, "Under its own settings the simulation makes 0 evictions, and 4 really happened, -100 %;"),
        (0, 0, "Under its own settings the simulation makes 0 evictions, and 0 really happened;"),
        (
            5,
            0,
            "Nothing was evicted in this recording, as in a dry run: 5 evictions are what enforcing would have done.",
        ),
    ],
)
def test_it_is_held_against_what_really_happened(itself: int, happened: int, said: str) -> None:
    assert doubts(configuration({}, itself), evictions=happened).startswith(said)


def test_each_doubt_is_said_where_there_is_reason_for_it() -> None:
    assert "For up to" not in doubts(RECORDED) and "Under some" not in doubts(RECORDED)
    found = doubts(
        RECORDED,
        configuration({"a": 1}, 1, full_ns=MINUTE_NS),
        configuration({"a": 2}, 1, unseen_ns=2 * MINUTE_NS),
        stalls_of_node=True,
        has_ladder=True,
        acts_ahead=True,
    )
    assert "more memory than there is would be used, for up to 60 s: the kernel" in found
    assert "For up to 120 s a node is at a use that was never recorded" in found
    for said in ("Stalls are those of any task of the node", "The ladder's milder rungs", "eviction.actAhead is not"):
        assert said in found
        assert said not in doubts(RECORDED)


VALIDATION = Validation(
    recording="a",
    other="b",
    minutes=10.0,
    other_minutes=20.0,
    settings={"threshold": (80, 70)},
    sections=("guards",),
    figures=(
        Compared(figure="evictions", simulated=3, happened=2.5, off_percent=20.0),
        Compared(figure="freed_bytes", simulated=3 * MIB, happened=0, off_percent=None),
        Compared(figure="above_ns", simulated=2e9, happened=1e9, off_percent=100.0),
        Compared(figure="stall_ns", simulated=0.5e9, happened=1e9, off_percent=-50.0),
    ),
    apart_percent=12.4,
    is_good=True,
)


def test_a_validation_says_what_differs_how_far_it_is_off_and_whether_that_is_good() -> None:
    assert validation_page(VALIDATION).splitlines() == [
        "a, 10.0 min, simulated under the settings of b",
        "  threshold: 80 in the recording, 70 in the other one",
        "  of the agents' own settings these differ: guards",
        "",
        "                     simulated  happened            off by",
        "evictions                    3       2.5             +20 %",
        "freed                  3.0 MiB       0 B  nothing happened",
        "above the threshold        2 s       1 s            +100 %",
        "stalls of LS pods       500 ms       1 s             -50 %",
        "",
        "What happened in 20.0 min is scaled to 10.0 min.",
        "Evictions are within ± 20 % of what happened. 12 % of the time the simulated",
        "  node was not the recorded one.",
    ]


@pytest.mark.parametrize(("other_minutes", "is_scaled"), [(9.8, True), (9.95, False), (10.05, False), (10.2, True)])
def test_recordings_of_about_the_same_length_are_not_scaled(other_minutes: float, is_scaled: bool) -> None:
    lines = validation_page(replace(VALIDATION, other_minutes=other_minutes, sections=(), is_good=False)).splitlines()
    assert any("is scaled" in line for line in lines) is is_scaled
    assert any(line.startswith("Evictions are NOT within") for line in lines)
    assert not any("own settings" in line for line in lines)
