"""However slow the API server is, within reason, its report of the node is never so old that the scheduler drops it."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from koordebpf.jobs.node_metric.publish import RETRY_CAP_S, RETRY_FIRST_S
from koordebpf.jobs.node_metric.sending import Hold, Limits, OtherWriter, Report, Send, Sending
from koordebpf.jobs.node_metric.values import NodeMetricSettings
from koordebpf.kube.colocation.node_metrics import ManagedFields, OwnMeta, OwnNodeMetric
from koordebpf.units import NS_PER_S
from tests.support.json_patch import applied

HOUR_S, EXPIRED_S = 3600, 180
START_S = 1_767_323_045


class Simulation:
    """An hour in steps of a second: reports, one request at a time, and a server with its own latencies and refusals.

    A request that is cut off may be carried out all the same.
    """

    def __init__(self, seed: int, latency_s: float, error_share: float, interval_s: int, busy_share: float) -> None:
        self._random = random.Random(seed)
        self._latency_s, self._error_share, self._busy_share = latency_s, error_share, busy_share
        self._interval_s = interval_s
        self._sending = Sending(NodeMetricSettings(), OtherWriter("koordebpf"))
        self._object: Any = {"metadata": {"resourceVersion": "1"}, "status": {"updateTime": _time(0)}}
        # Request, since, until, whether it is cut off, and carried out.
        self._in_flight: tuple[Send, float, float, bool, bool] | None = None
        self._millicpu = 1000
        self._failures = 0
        self.versions_lost = 0
        self.worst_age_s = 0.0
        self._updated_s = 0.0

    def run(self) -> None:
        period_s = min(self._interval_s, 120)
        newest, free_at = None, 0.0
        self._found(0)
        for now in range(HOUR_S):
            if now % period_s == 5:
                newest = self._report(now, period_s)
            if self._random.random() < 0.002:  # koord-manager writes the spec
                self._write(now, self._object["status"])
                self._found(now)
            if self._in_flight is not None:
                free_at = self._continue(now) or free_at
            elif newest is not None and now >= free_at:
                step = self._sending.step(newest, now * NS_PER_S)
                if isinstance(step, Send):
                    self._begin(step, now)
                else:
                    assert isinstance(step, Hold)
            self.worst_age_s = max(self.worst_age_s, now - self._updated_s)

    def _begin(self, send: Send, now: float) -> None:
        self._sending.starts(send, int(now * NS_PER_S))
        takes_s = self._random.uniform(0, self._latency_s)
        is_cut = takes_s > send.timeout_s
        self._in_flight = (
            send,
            now,
            now + min(takes_s, send.timeout_s),
            is_cut,
            not is_cut or self._random.random() < 0.5,
        )

    # Returns when the next may begin, once this one has ended.
    def _continue(self, now: float) -> float | None:
        assert self._in_flight is not None
        send, since, until, is_cut, is_done = self._in_flight
        if now < until:
            return None
        self._in_flight = None
        took_ns = int((until - since) * NS_PER_S)
        if self._random.random() < self._error_share:
            self._sending.failed(send, took_ns)
            return now + self._backoff()
        is_current = send.version == self._object["metadata"]["resourceVersion"]
        if not is_current:
            self.versions_lost += 1
            self._sending.conflicted(send)
            self._found(now)
            return now
        if is_done:
            after = applied(self._object, send.body)["status"]
            self._write(now, after)
            self._updated_s = send.of.now_ns / NS_PER_S
        if is_cut:
            assert self._sending.failed(send, took_ns)
            self._found(now)
            return now
        self._sending.answered(send, self._metric(), took_ns)
        self._failures = 0
        return now

    def _backoff(self) -> float:
        self._failures += 1
        return min(RETRY_FIRST_S * 2 ** (self._failures - 1), RETRY_CAP_S)

    def _report(self, now: int, period_s: int) -> Report:
        if self._random.random() < self._busy_share:
            self._millicpu = self._random.randrange(100, 8000)
        used = {"resources": {"cpu": f"{self._millicpu}m", "memory": "1Gi"}}
        status = {"updateTime": _time(now), "nodeMetric": {"nodeUsage": used}}
        of_s = NS_PER_S
        return Report(now * of_s, status, self._interval_s * of_s, period_s * of_s, Limits(0.05, 0.02))

    def _write(self, now: float, status: Any) -> None:
        version = str(int(self._object["metadata"]["resourceVersion"]) + 1)
        self._object = {"metadata": {"resourceVersion": version}, "status": status}

    def _found(self, now: float) -> None:
        self._sending.found(self._metric(), int(now * NS_PER_S), START_S + now, self._interval_s * NS_PER_S)

    def _metric(self) -> OwnNodeMetric:
        writers = (ManagedFields("koordebpf", "Update", "status", _time(0)),)
        meta = OwnMeta("n1", "uid", self._object["metadata"]["resourceVersion"], writers)
        return OwnNodeMetric(meta, {}, self._object["status"])


def _time(second: float) -> str:
    return datetime.fromtimestamp(START_S + second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    latency_s=st.floats(0, 20),
    interval_s=st.sampled_from([30, 45, 60, 90, 120, 300]),
    busy_share=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_a_server_that_takes_up_to_20_s_has_no_report_that_is_too_old(
    seed: int, latency_s: float, interval_s: int, busy_share: float
) -> None:
    simulation = Simulation(seed, latency_s, 0.0, interval_s, busy_share)
    simulation.run()
    assert simulation.worst_age_s < EXPIRED_S


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), latency_s=st.floats(0, 3), busy_share=st.sampled_from([0.0, 1.0]))
@example(seed=8738129, latency_s=2.25, busy_share=0.0)
def test_a_server_that_refuses_one_of_three_requests_has_none_either(
    seed: int, latency_s: float, busy_share: float
) -> None:
    simulation = Simulation(seed, latency_s, 1 / 3, 60, busy_share)
    simulation.run()
    assert simulation.worst_age_s < EXPIRED_S


def test_without_trouble_the_oldest_one_is_two_minutes_old() -> None:
    simulation = Simulation(1, 0.2, 0.0, 60, 0.0)
    simulation.run()
    assert 115 <= simulation.worst_age_s <= 126
