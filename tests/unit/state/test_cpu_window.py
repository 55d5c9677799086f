"""The averages of the window that CPU eviction judges."""

from __future__ import annotations

from koordebpf.state.cpu.rates import append_cpu, cpu_window
from koordebpf.state.series.store import NodeSeries, SeriesSettings, node_series
from koordebpf.units import MIB, NS_PER_S


def push(series: NodeSeries, second: float, used: int | None, limit: int | None = 4000) -> None:
    append_cpu(series, int(second * NS_PER_S), node_used=used, be_used=used, be_request=1000, be_limit=limit)


def test_the_window_is_averaged_and_says_how_much_of_it_is_known():
    series = node_series()
    for second in range(10):
        push(series, second, second * 1000)
    window = cpu_window(series, 9 * NS_PER_S, 4 * NS_PER_S)
    assert (window.node_used_millicpu, window.covered_ns, window.window_ns) == (7500, 4 * NS_PER_S, 4 * NS_PER_S)
    assert cpu_window(series, 9 * NS_PER_S, 60 * NS_PER_S).covered_ns == 10 * NS_PER_S
    assert cpu_window(series, 69 * NS_PER_S, 60 * NS_PER_S).covered_ns == 0
    assert cpu_window(series, 69 * NS_PER_S, 60 * NS_PER_S).node_used_millicpu is None


def test_samples_that_come_faster_are_left_out():
    series = node_series()
    for tick in range(100):
        push(series, tick / 10, 1000)
    assert cpu_window(series, 10 * NS_PER_S, 60 * NS_PER_S).covered_ns == 10 * NS_PER_S


def test_a_loop_that_wakes_some_milliseconds_early_keeps_its_samples():
    series = node_series()
    for tick in range(10):
        push(series, tick * 0.96, 1000)
    assert cpu_window(series, int(9.6 * NS_PER_S), 60 * NS_PER_S).covered_ns == 10 * NS_PER_S


def test_a_sample_without_a_value_counts_for_the_others():
    series = node_series()
    push(series, 0, 1000, limit=None)
    push(series, 1, 3000, limit=8000)
    window = cpu_window(series, NS_PER_S, 2 * NS_PER_S)
    assert (window.be_used_millicpu, window.be_limit_millicpu) == (2000, 8000)


def test_a_value_that_is_known_for_less_than_a_third_of_the_window_has_no_average():
    # GIVEN a best-effort directory of which little was seen in a node that was seen all the time
    series = node_series()
    for second in range(9):
        push(series, second, 1000, limit=2000 if second >= 7 else None)
    window = cpu_window(series, 8 * NS_PER_S, 9 * NS_PER_S)
    assert (window.node_used_millicpu, window.be_limit_millicpu) == (1000, None)
    push(series, 9, 1000, limit=8000)
    assert cpu_window(series, 9 * NS_PER_S, 9 * NS_PER_S).be_limit_millicpu == 4000


def test_a_window_is_never_longer_than_what_is_kept():
    series = node_series()
    for second in range(1000):
        push(series, second, second)
    window = cpu_window(series, 999 * NS_PER_S, 3600 * NS_PER_S)
    assert (window.window_ns, window.covered_ns) == (600 * NS_PER_S, 600 * NS_PER_S)
    assert window.node_used_millicpu == sum(range(400, 1000)) // 600


def test_what_was_sampled_before_anything_was_known_is_covered():
    # the first sample has no rates yet
    series = node_series()
    push(series, 0, None, limit=None)
    push(series, 1, 1000)
    window = cpu_window(series, NS_PER_S, 2 * NS_PER_S)
    assert (window.covered_ns, window.node_used_millicpu) == (2 * NS_PER_S, 1000)


def test_a_sample_that_comes_too_soon_is_dropped_as_a_whole():
    series = node_series()
    push(series, 0, 1000, limit=None)
    push(series, 0.5, 3000, limit=8000)
    assert cpu_window(series, NS_PER_S, 2 * NS_PER_S).be_limit_millicpu is None


def test_the_window_is_whole_however_many_series_tenants_make():
    series = node_series(SeriesSettings(budget_bytes=MIB))
    for second in range(600):
        pods = {("pod_cpu_usage", f"{pod}"): second * pod % 97 / 7 for pod in range(second + 100)}
        series.append_round(second * NS_PER_S, pods)
        push(series, second + 0.5, 1000)
    assert series.counts.dropped_samples > 0 < series.counts.refused_samples
    window = cpu_window(series, 600 * NS_PER_S, 600 * NS_PER_S)
    assert (window.covered_ns, window.be_limit_millicpu) == (600 * NS_PER_S, 4000)
