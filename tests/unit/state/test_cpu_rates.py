"""Rates of CPU-time counters, and what limits best-effort pods."""

from __future__ import annotations

import pytest

from koordebpf.state.cpu.measured import BeCgroup, BeQuota, CpuMeasured
from koordebpf.state.cpu.rates import CpuRates
from koordebpf.state.cpu.view import be_limit_millicpu
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


def test_a_counter_that_jumps_by_more_than_all_cpus_give_has_no_rate():
    rates: CpuRates[str] = CpuRates()
    rates.millicpu("a", 0, 0)
    assert rates.millicpu("a", NS_PER_S, 1 << 90) is None
    assert rates.millicpu("a", 2 * NS_PER_S, (1 << 90) + NS_PER_S) == 1000


def test_what_is_not_kept_is_forgotten():
    rates: CpuRates[str] = CpuRates()
    rates.millicpu("a", 0, 0)
    rates.millicpu("b", 0, 0)
    rates.keep_only({"b"})
    assert rates.millicpu("a", NS_PER_S, NS_PER_S) is None
    assert rates.millicpu("b", NS_PER_S, NS_PER_S) == 1000


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
    # Without a cpuset controller, where a quota that is set and lifted is the only limit.
    assert limit(BeCgroup("be", "root"), quota=BeQuota(None)) == 7000
    assert limit(BeCgroup("be", "root"), quota=BeQuota(900_000)) == 7000
    assert limit(BeCgroup("be", "root"), quota=BeQuota(50_000)) == 500
