"""`koordebpf simulate` on recordings: sweeps, the page, and how far it is off where a setting really was another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from koordebpf.cli import _group
from koordebpf.errors import ConfigError
from koordebpf.store.recorder.read import Recording
from koordebpf.tools.what_if.simulate import (
    MOST,
    Sweep,
    combinations,
    parse_sweep,
    recordings_of,
    released_after_ns,
    simulated,
    validated,
)
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.support.values.played_node import jobs_of, play, record

SECONDS = 200
AT = "memoryEvictThresholdPercent"
GOLDEN = Path(__file__).parents[3] / "golden" / "what_if"


def run(*arguments: object, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(_group, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def recorded(folder: Path, seed: int, threshold: int, lower: int, **asked: Any) -> Path:
    rounds = play(jobs_of(seed, SECONDS), SECONDS, threshold, lower, **asked)
    return record(folder / f"{seed}-{threshold}.rounds", rounds, released_s=0.2)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    return recorded(folder, 1, 85, 75), recorded(folder, 1, 70, 60)


class TestSweep:
    @pytest.mark.parametrize(
        ("entry", "values"),
        [
            ("x=70..95:5", (70, 75, 80, 85, 90, 95)),
            ("x=70..72", (70, 71, 72)),
            ("x=0.5..1:0.25", (0.5, 0.75, 1)),
            ("x=1..2:5", (1,)),
            ("x=a,b", ("a", "b")),
            ("x=2s,4s", ("2s", "4s")),
            ("x=80", (80,)),
            ("x=true,null", (True, None)),
            ('x=["a","b"]', (["a", "b"],)),
        ],
    )
    def test_values_are_listed_or_ranged(self, entry, values):
        assert parse_sweep(entry) == Sweep("x", values)

    @pytest.mark.parametrize("entry", ["x", "x=", "=1", "x=5..1", "x=1..9:0", "x=0..1000:1", "x=1..1.2.3"])
    def test_what_is_no_range_is_named(self, entry):
        with pytest.raises(ConfigError, match="--set"):
            parse_sweep(entry)

    def test_several_make_a_grid(self):
        grid = combinations([Sweep("a", (1, 2)), Sweep("b", ("x", "y"))])
        assert grid == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]

    def test_a_grid_is_bounded_and_names_each_setting_once(self):
        with pytest.raises(ConfigError, match=f"{MOST} or fewer"):
            combinations([Sweep("a", tuple(range(9))), Sweep("b", tuple(range(8)))])
        with pytest.raises(ConfigError, match="there once"):
            combinations([Sweep("a", (1,)), Sweep("a", (2,))])


def test_the_page_has_the_table_the_plot_and_what_cannot_be_known(pair):
    page = run("simulate", pair[0], "--set", f"{AT}=70..90:10", "--set", "memoryEvictLowerPercent=60").output
    lines = page.splitlines()
    assert max(map(len, lines)) <= 80
    assert f"{AT} × memoryEvictLowerPercent:" in lines
    rows = {line.split("  ")[0]: line.split() for line in lines if " %" in line}
    assert rows["as recorded"][2] == next(line for line in lines if line.startswith("really")).split()[2]
    assert {"70 × 60", "80 × 60", "90 × 60"} <= rows.keys()
    assert sum("█" in line for line in lines) >= 9
    for said in ("Model: ", "Cannot be known: ", "really happened, +0 %"):
        assert said in " ".join(page.split())


def test_two_settings_with_several_values_are_a_grid(pair):
    page = run("simulate", pair[0], "--set", f"{AT}=70,80", "--set", "memoryEvictLowerPercent=60,75").output
    assert f"evictions, {AT} down, memoryEvictLowerPercent across" in page
    assert "70 × 75: lower percent(75) should less than threshold percent(70)" in page
    assert max(map(len, page.splitlines())) <= 80


def test_json_has_each_configuration_and_its_schema(pair):
    found = json.loads(run("simulate", *pair, "--set", f"{AT}=80", "--json").output)
    assert found["schema"] == "koordebpf.simulation/v1"
    assert [each["settings"] for each in found["configurations"]] == [{}, {AT: 80}]
    assert found["recorded"]["rounds"] == 2 * SECONDS
    one = json.loads(run("simulate", pair[0], "--json").output)
    other = json.loads(run("simulate", pair[1], "--json").output)
    for name in ("evictions", "freed_bytes", "above_ns", "stall_ns"):
        assert found["recorded"][name] == one["recorded"][name] + other["recorded"][name]
    assert found["release_ns"] == 200 * NS_PER_MS


def test_a_dry_run_says_what_enforcing_would_have_done(tmp_path):
    path = recorded(tmp_path, 2, 80, 70, enforce=False)
    page = run("simulate", path).output
    assert "Nothing was evicted in this recording, as in a dry run" in page
    found = json.loads(run("simulate", path, "--json").output)
    assert found["recorded"]["evictions"] == 0 < found["configurations"][0]["outcome"]["evictions"]
    assert found["release_ns"] == NS_PER_S  # nothing says how long it takes


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("memoryEvictTresholdPercent=80", "did you mean memoryEvictThresholdPercent"),
        (f"{AT}=high", "--set"),
        ("eviction.coolTime=soon", "must be a duration"),
        ("eviction.none=1", "no such field"),
    ],
)
def test_a_setting_that_is_none_is_named(pair, entry, said):
    with pytest.raises(ConfigError, match=said):
        run("simulate", pair[0], "--set", entry)


def test_the_agents_own_settings_are_swept_too(pair):
    found = json.loads(run("simulate", pair[0], "--set", "guards.evictionsPerMinute=1,10", "--json").output)
    one, ten = (each["outcome"]["evictions"] for each in found["configurations"][1:])
    assert one <= 4 and ten == found["recorded"]["evictions"] > one


def test_nodes_in_one_folder_are_not_mixed(tmp_path, pair):
    for number, path in enumerate(pair):
        folder = tmp_path / "all" / f"node-{number}"
        folder.mkdir(parents=True)
        shutil.copy(path, folder / "day-1800000000-0123abcd-0.rounds")
    found = recordings_of(str(tmp_path / "all"))
    assert [len(each) for each in found] == [SECONDS, SECONDS]


def test_what_is_no_recording_is_named(tmp_path):
    with pytest.raises(ConfigError):
        recordings_of(str(tmp_path / "none"))
    with pytest.raises(ConfigError):
        recordings_of(str(tmp_path))


def test_validation_takes_one_recording_and_no_setting(pair):
    run("simulate", *pair, "--validate", pair[0], exit_code=2)
    run("simulate", pair[0], "--set", f"{AT}=80", "--validate", pair[1], exit_code=2)


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4])
def test_earlier_evictions_are_simulated_within_a_fifth_of_what_happens(tmp_path, seed):
    first, second = recorded(tmp_path, seed, 85, 75), recorded(tmp_path, seed, 70, 60)
    found = validated(Recording(first), Recording(second))
    evictions, freed, above, _ = found.figures
    assert evictions.happened >= 2
    assert found.is_good and abs(evictions.off_percent) <= 20
    assert abs(freed.off_percent) <= 20 and abs(above.off_percent) <= 20
    assert found.settings == {AT: (85, 70), "memoryEvictLowerPercent": (75, 60)}


def test_on_a_real_node_earlier_evictions_are_within_a_fifth_of_what_happened():
    """Of tests/bench/what_if.py, seed 4: processes in two node cgroups on Linux 6.18, their agents at 85 and 70 %."""
    first, second = (Recording(GOLDEN / f"at-{percent}.rounds") for percent in (85, 70))
    found = validated(first, second)
    evictions, freed, *_ = found.figures
    assert (evictions.simulated, simulated([second], []).recorded.evictions) == (5, 5)
    assert found.is_good and abs(freed.off_percent) < 5
    assert simulated([first], []).configurations[0].outcome.evictions == 2  # under its own settings, as really
    back = validated(second, first)
    assert (back.figures[0].simulated, back.is_good) == (1, False)  # 2 really: what was evicted would have grown on


def test_it_says_how_far_it_is_off(tmp_path):
    first, second = recorded(tmp_path, 1, 70, 60), recorded(tmp_path, 1, 85, 75)
    page = run("simulate", first, "--validate", second).output
    found = json.loads(run("simulate", first, "--validate", second, "--json").output)
    off = found["figures"][0]["off_percent"]
    assert not found["is_good"] and f"{off:+.0f} %" in page
    assert "Evictions are NOT within ± 20 % of what happened." in page
    assert max(map(len, page.splitlines())) <= 80


def test_another_length_is_scaled(tmp_path):
    long = recorded(tmp_path, 1, 85, 75)
    half = record(tmp_path / "half.rounds", list(play(jobs_of(1, SECONDS), SECONDS, 85, 75))[:100])
    found = validated(Recording(long), Recording(half))
    assert found.figures[0].happened == pytest.approx(simulated([Recording(half)], []).recorded.evictions * 199 / 99)
    assert "is scaled to" in run("simulate", long, "--validate", half).output


def test_a_release_takes_the_median_of_what_was_recorded(pair):
    assert released_after_ns([Recording(each) for each in pair]) == 200 * NS_PER_MS
    found = json.loads(run("simulate", pair[0], "--release-after", "2.5", "--held-for", "0", "--json").output)
    assert (found["release_ns"], found["held_ns"]) == (2_500 * NS_PER_MS, 0)
