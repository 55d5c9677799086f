"""How often use exceeds its predicted peak, on generated recordings: stationary, with a daily curve, with a step."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from koordebpf.jobs.prediction.backtest import Backtest, Interval, Row, Seen, backtest, intervals, series_intervals
from koordebpf.jobs.prediction.models import Usage
from koordebpf.jobs.prediction.values import PredictionSettings
from koordebpf.state.series.store import node_series
from koordebpf.units import GIB, NS_PER_S

MINUTE_NS = 60 * NS_PER_S
SETTINGS = PredictionSettings()
Load = Callable[[int, random.Random], float]  # minute → share of what is usual


def stationary(_minute: int, chance: random.Random) -> float:
    return chance.lognormvariate(0, 0.2)


def daily(minute: int, chance: random.Random) -> float:
    return (1.2 + math.sin(2 * math.pi * minute / 1440)) * chance.lognormvariate(0, 0.1)


def step(minute: int, chance: random.Random) -> float:
    return (1.0 if minute < 2880 else 2.0) * chance.lognormvariate(0, 0.1)


def played(load: Load, days: int = 4, pods: int = 2, settings: PredictionSettings = SETTINGS) -> Backtest:
    """Return what came of some days of pods of one load, whose node uses a little more than they do."""
    chance = random.Random(17)
    bands = {f"uid-{n}": "koord-prod" for n in range(pods)}

    def recording():
        for minute in range(days * 1440):
            usages = {uid: Usage(load(minute, chance), load(minute, chance) * GIB) for uid in bands}
            cores = sum(each.cpu_cores for each in usages.values())
            size = sum(each.memory_bytes for each in usages.values())
            yield Seen(minute * MINUTE_NS, Usage(cores + 0.5, size + GIB), usages, bands)

    return backtest(intervals(recording(), MINUTE_NS), settings, MINUTE_NS, 1440)


def rows(found: Backtest) -> dict[tuple[str, str], Row]:
    return {(row.of, row.resource): row for row in found.rows}


@pytest.mark.parametrize("load", [stationary, daily])
def test_peaks_are_exceeded_in_at_most_a_twentieth_of_the_intervals(load):
    found = rows(played(load))
    assert found[("pods", "cpu")].intervals == 2 * found[("node", "cpu")].intervals == 2 * (4 * 1440 - 1440 - 1)
    missed = {key: row.exceeded_ratio for key, row in found.items() if not row.is_good}
    assert missed == {}


def test_after_a_step_peaks_are_exceeded_more_often_and_it_says_by_how_much():
    found = rows(played(step))
    row = found[("pods", "cpu")]
    assert not row.is_good and 0.05 < row.exceeded_ratio < 0.08
    # memory's peak is a higher percentile; and within the margin of a tenth CPU's is good too
    assert found[("pods", "memory")].is_good and row.with_margin_ratio < 0.03
    # the first samples after it are about twice what was usual, and the peak was 1.05 to 1.2 of that
    assert row.excess_max is not None and 0.6 < row.excess_max < 1.6


def test_a_lower_percentile_is_exceeded_more_often():
    median = PredictionSettings(cpu_peak_percent=50, memory_peak_percent=50)
    found = rows(played(stationary, days=2, settings=median))
    assert found[("pods", "cpu")].exceeded_ratio > 0.3
    assert not found[("pods", "memory")].is_good and found[("pods", "memory")].percent == 50


def test_the_share_and_the_excess_are_those_of_a_hand_count():
    # ten samples of 1 core, then 1, 2, 1, 4: the peak is the end of the bucket of 1 until a twentieth is above
    cores = [1.0] * 100 + [1.0, 2.0, 1.0, 4.0]
    recorded = [Interval(n * MINUTE_NS, {"u": Usage(each, 0.0)}) for n, each in enumerate(cores)]
    found = rows(backtest(recorded, SETTINGS, MINUTE_NS, 100))[("pods", "cpu")]
    bucket = int(math.log(1.0 * 0.05 / 0.025 + 1) / math.log(1.05))
    peak = int(0.025 * (1.05 ** (bucket + 1) - 1) / 0.05 * 1000)
    assert (found.intervals, found.exceeded_ratio, found.with_margin_ratio) == (4, 0.5, 0.5)
    assert found.excess_p50 == pytest.approx(2000 / peak - 1)
    assert found.excess_max == pytest.approx(4000 / peak - 1)
    assert not found.is_good


def test_samples_are_the_p90_of_each_interval():
    recording = [Seen(n * NS_PER_S, None, {"u": Usage(float(n), 1.0)}, {"u": "koord-prod"}) for n in range(1, 182)]
    found = list(intervals(recording, MINUTE_NS))
    # of the 60 samples after the first: the one at index trunc(60 · 0.9) − 1
    assert [each.samples["u"].cpu_cores for each in found] == [55, 115, 175]
    assert [each.samples["__node-koord-prod__"].cpu_cores for each in found] == [55, 115, 175]
    assert "__node__" not in found[0].samples


def test_a_band_without_pods_is_not_judged():
    recorded = [
        Interval(n * MINUTE_NS, {"u": Usage(1.0, 1.0), "__node-koord-mid__": Usage(0.0, 0.0)}) for n in range(20)
    ]
    assert {row.of for row in backtest(recorded, SETTINGS, MINUTE_NS, 5).rows} == {"pods"}


def test_a_gap_has_no_samples_and_what_is_older_is_left_out():
    moments = [0, 60, 120, 100, 600, 660, 661]
    recording = [Seen(each * NS_PER_S, Usage(1.0, 1.0), {}, {}) for each in moments]
    assert [each.end_ns // NS_PER_S for each in intervals(recording, MINUTE_NS)] == [60, 120, 600, 660]


def test_series_are_cut_into_intervals_of_pods_node_and_system():
    series = node_series()
    for second in range(1, 181):
        for key, value in (("pod_cpu_usage", "u"), 1.0), (("pod_memory_usage", "u"), 5.0):
            series.append(key, second * NS_PER_S, value)
        for key, value in (("node_cpu_usage",), 4.0), (("node_memory_usage",), 9.0):
            series.append(key, second * NS_PER_S, value)
    found = list(series_intervals(series, ("u", "gone"), 0, 180 * NS_PER_S, MINUTE_NS))
    assert [each.end_ns // NS_PER_S for each in found] == [60, 120, 180]
    used = {"u": Usage(1.0, 5.0), "__node__": Usage(4.0, 9.0), "__node-sys__": Usage(3.0, 4.0)}
    assert [each.samples for each in found] == [used] * 3


def test_a_recording_of_nothing_has_no_rows():
    assert backtest(intervals([], MINUTE_NS), SETTINGS, MINUTE_NS, 10) == Backtest(0, MINUTE_NS, 10, ())
