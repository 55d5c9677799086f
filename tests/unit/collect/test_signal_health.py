"""What the backend counts, and which of its probes it lost since the start."""

from __future__ import annotations

import time

import pytest

from koordebpf.collect.node_watch import SignalHealth
from koordebpf.kernel.signals import LIMIT_STALLS, SignalSource
from koordebpf.units import NS_PER_S
from tests.support.played_signals import PlayedSignals, totals

LOST = SignalSource(LIMIT_STALLS, "", False, "it was detached", "Restart the agent.")


def test_totals_are_those_of_now_and_none_where_nothing_is_counted():
    signals = PlayedSignals()
    health = SignalHealth(signals)
    assert health.totals() is None
    signals.counted = totals(episodes=3)
    first = health.totals()
    assert first is not None and first.episodes == 3
    assert health.totals() is first  # what reads the same is not decoded again
    signals.counted = totals(episodes=4)
    second = health.totals()
    assert second is not None and second.episodes == 4
    signals.counted = b""
    assert health.totals() is None


def test_a_probe_that_was_lost_is_seen_within_ten_seconds_and_logged_once(caplog: pytest.LogCaptureFixture):
    signals = PlayedSignals()
    health = SignalHealth(signals)
    signals.lost = [LOST]
    now_ns = time.monotonic_ns()
    health.poll(now_ns)
    assert health.lost == ()
    for seconds in (10, 20):
        health.poll(now_ns + seconds * NS_PER_S)
    assert health.lost == (LOST,)
    assert caplog.text.count("it was detached. Restart the agent.") == 1
    signals.lost = []
    health.poll(now_ns + 30 * NS_PER_S)
    assert health.lost == ()


def test_runs_that_the_kernel_passed_over_are_in_the_quality():
    signals = PlayedSignals()
    health = SignalHealth(signals)
    assert health.quality.stalls == "timed"
    whole = health.quality.sentence
    now_ns = time.monotonic_ns()
    health.poll(now_ns + 10 * NS_PER_S)  # nothing is counted
    assert health.quality.sentence == whole
    signals.counted = totals(missed_runs=5)
    health.poll(now_ns + 20 * NS_PER_S)
    assert health.quality.sentence != whole
    assert "5" in health.quality.sentence
