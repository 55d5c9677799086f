"""From counters of cgroups to rates and ratios: what begins, falls, pauses or ends."""

from __future__ import annotations

import pytest

from koordebpf.jobs.usage_series.collector import LONGEST_NS, CounterRates, ThrottledRatios
from koordebpf.units import NS_PER_S

A, B = 23, 42


def test_the_first_value_only_begins():
    rates = CounterRates()
    assert rates.push(NS_PER_S, {A: 5 * NS_PER_S}) == {}
    assert rates.push(3 * NS_PER_S, {A: 6 * NS_PER_S, B: 1}) == {A: 0.5}


def test_each_counter_has_its_own_times():
    rates = CounterRates()
    rates.push(0, {A: 0, B: 0})
    rates.push(NS_PER_S, {A: NS_PER_S})
    assert rates.push(4 * NS_PER_S, {A: NS_PER_S, B: 2 * NS_PER_S}) == {A: 0.0, B: 0.5}


def test_a_counter_that_went_back_has_no_sample_and_continues_from_before():
    rates = CounterRates()
    rates.push(0, {A: 100})
    assert rates.push(NS_PER_S, {A: 90}) == {}
    assert rates.went_back == 1
    # Over both seconds: what was missing in the first is in the second.
    assert rates.push(2 * NS_PER_S, {A: 100 + 2 * NS_PER_S}) == {A: 1.0}


def test_a_counter_that_started_again_has_a_rate_from_the_third_value_on():
    rates = CounterRates()
    rates.push(0, {A: 100 * NS_PER_S})
    assert rates.push(NS_PER_S, {A: 1}) == {}
    assert rates.push(2 * NS_PER_S, {A: 2}) == {}
    assert rates.push(3 * NS_PER_S, {A: 2 + NS_PER_S // 4}) == {A: 0.25}


@pytest.mark.parametrize(("since_ns", "has_sample"), [(LONGEST_NS, True), (LONGEST_NS + 1, False), (0, False)])
def test_a_pause_ends_a_rate(since_ns, has_sample):
    rates = CounterRates()
    rates.push(NS_PER_S, {A: 0})
    assert bool(rates.push(NS_PER_S + since_ns, {A: 1})) is has_sample
    assert rates.too_old == (since_ns > LONGEST_NS)
    assert A in rates.push(NS_PER_S + since_ns + 1, {A: 2})


def test_time_that_stood_still_or_ran_back_gives_no_sample():
    rates = CounterRates()
    rates.push(NS_PER_S, {A: 0})
    assert rates.push(NS_PER_S // 2, {A: 7}) == {}
    assert rates.push(2 * NS_PER_S, {A: NS_PER_S}) == {A: 1.0}


def test_what_is_not_kept_begins_again():
    rates = CounterRates()
    rates.push(0, {A: 0, B: 0})
    rates.keep_only([B])
    assert rates.push(NS_PER_S, {A: NS_PER_S, B: NS_PER_S}) == {B: 1.0}


def test_a_ratio_is_of_the_periods_since_and_zero_without_a_new_one():
    ratios = ThrottledRatios()
    assert ratios.push({A: (10, 4)}) == {}
    assert ratios.push({A: (20, 9)}) == {A: 0.5}
    assert ratios.push({A: (20, 9)}) == {A: 0.0}
    assert ratios.push({A: (30, 9)}) == {A: 0.0}


def test_a_cgroup_without_quota_has_no_ratio():
    ratios = ThrottledRatios()
    assert ratios.push({A: (0, 0)}) == {}
    assert ratios.push({A: (0, 0)}) == {}


def test_periods_that_started_again_give_no_ratio():
    ratios = ThrottledRatios()
    ratios.push({A: (10, 4)})
    assert ratios.push({A: (3, 1)}) == {}
    assert ratios.push({A: (5, 1)}) == {A: 0.0}
    assert ratios.push({A: (9, 0)}) == {}  # of two files that were read one after the other
    ratios.keep_only([])
    assert ratios.push({A: (7, 2)}) == {}
