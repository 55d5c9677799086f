"""Rates of CPU-time counters, and the averages of a window."""

from __future__ import annotations

import pytest

from koordebpf.state.cpu.best_effort import be_limit_millicpu
from koordebpf.state.cpu.measured import BeCgroup, BeQuota, CpuMeasured
from koordebpf.state.cpu.rates import CpuRates, CpuWindows
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.support.values.machines import machine, without


def test_a_rate_needs_two_samples_and_counts_thousandths_of_a_cpu():
    rates: CpuRates[str] = CpuRates()
    assert rates.millicpu("node", 0, 5 * NS_PER_S) is None
    assert rates.millicpu("node", NS_PER_S, 5 * NS_PER_S + 1_500_000_000) == 1500
    assert rates.millicpu("other", NS_PER_S, 0) is None


def test_the_rate_is_that_of_the_window_at_any_pace():
    rates: CpuRates[str] = CpuRates(NS_PER_S)
    answers = [rates.millicpu("a", tick * 10 * NS_PER_MS, tick * 20 * NS_PER_MS) for tick in range(500)]
    assert answers[0] is None
    assert {round(each, -1) for each in answers[7:]} == {2000}
    # it stops: within a second the rate is nothing
    stopped = [rates.millicpu("a", (500 + tick) * 10 * NS_PER_MS, 9980 * NS_PER_MS) for tick in range(110)]
    assert stopped[50] == pytest.approx(1000, abs=150)
    assert stopped[-1] == 0


def test_a_counter_that_restarts_has_no_rate_yet():
    rates: CpuRates[str] = CpuRates()
    rates.millicpu("a", 0, 9 * NS_PER_S)
    assert rates.millicpu("a", NS_PER_S, 1) is None
    assert rates.millicpu("a", 2 * NS_PER_S, NS_PER_S + 1) == 1000


def test_what_is_not_kept_is_forgotten():
    rates: CpuRates[str] = CpuRates()
    rates.millicpu("a", 0, 0)
    rates.millicpu("b", 0, 0)
    rates.keep_only({"b"})
    assert rates.millicpu("a", NS_PER_S, NS_PER_S) is None
    assert rates.millicpu("b", NS_PER_S, NS_PER_S) == 1000


def push(windows: CpuWindows, second: float, used: int | None, limit: int | None = 4000) -> None:
    windows.push(int(second * NS_PER_S), node_used=used, be_used=used, be_request=1000, be_limit=limit)


def test_the_window_is_averaged_and_says_how_much_of_it_is_known():
    windows = CpuWindows()
    for second in range(10):
        push(windows, second, second * 1000)
    window = windows.window(9 * NS_PER_S, 4 * NS_PER_S)
    assert (window.node_used_millicpu, window.covered_ns, window.window_ns) == (7500, 4 * NS_PER_S, 4 * NS_PER_S)
    assert windows.window(9 * NS_PER_S, 60 * NS_PER_S).covered_ns == 10 * NS_PER_S
    assert windows.window(69 * NS_PER_S, 60 * NS_PER_S).covered_ns == 0
    assert windows.window(69 * NS_PER_S, 60 * NS_PER_S).node_used_millicpu is None


def test_samples_that_come_faster_are_left_out():
    windows = CpuWindows()
    for tick in range(100):
        push(windows, tick / 10, 1000)
    assert windows.window(10 * NS_PER_S, 60 * NS_PER_S).covered_ns == 10 * NS_PER_S


def test_a_loop_that_wakes_some_milliseconds_early_keeps_its_samples():
    windows = CpuWindows()
    for tick in range(10):
        push(windows, tick * 0.96, 1000)
    assert windows.window(int(9.6 * NS_PER_S), 60 * NS_PER_S).covered_ns == 10 * NS_PER_S


def test_a_sample_without_a_value_counts_for_the_others():
    windows = CpuWindows()
    push(windows, 0, 1000, limit=None)
    push(windows, 1, 3000, limit=8000)
    window = windows.window(NS_PER_S, 2 * NS_PER_S)
    assert (window.be_used_millicpu, window.be_limit_millicpu) == (2000, 8000)


def test_a_value_that_is_known_for_less_than_a_third_of_the_window_has_no_average():
    # GIVEN a best-effort directory of which little was seen in a node that was seen all the time
    windows = CpuWindows()
    for second in range(9):
        push(windows, second, 1000, limit=2000 if second >= 7 else None)
    window = windows.window(8 * NS_PER_S, 9 * NS_PER_S)
    assert (window.node_used_millicpu, window.be_limit_millicpu) == (1000, None)
    push(windows, 9, 1000, limit=8000)
    assert windows.window(9 * NS_PER_S, 9 * NS_PER_S).be_limit_millicpu == 4000


def test_a_window_is_never_longer_than_what_is_kept():
    windows = CpuWindows(longest_ns=5 * NS_PER_S)
    for second in range(100):
        push(windows, second, second)
    window = windows.window(99 * NS_PER_S, 3600 * NS_PER_S)
    assert (window.window_ns, window.covered_ns, window.node_used_millicpu) == (5 * NS_PER_S, 5 * NS_PER_S, 97)


def test_what_best_effort_pods_may_have_at_most():
    def limit(*cgroups: BeCgroup, quota: BeQuota | None = None) -> int | None:
        topology = without(machine(cores=8), [7])
        return be_limit_millicpu(CpuMeasured(topology, be_cgroups=cgroups, be_quota=quota))

    root = BeCgroup("be", "root", cpus=(0, 1, 2, 3, 7))
    assert limit(root) == 4000  # CPU 7 is offline
    assert limit(root, BeCgroup("be/a", "pod", cpus=(0,)), BeCgroup("be/a/c", "container", cpus=(0, 1, 2))) == 3000
    assert limit(root, quota=BeQuota(25_000, 50_000)) == 500
    assert limit(root, quota=BeQuota(None)) == 4000
    assert limit(BeCgroup("be", "root")) is None
    # Without a cpuset controller, where a quota that comes and goes is the only limit.
    assert limit(BeCgroup("be", "root"), quota=BeQuota(None)) == 7000
    assert limit(BeCgroup("be", "root"), quota=BeQuota(900_000)) == 7000
    assert limit(BeCgroup("be", "root"), quota=BeQuota(50_000)) == 500
