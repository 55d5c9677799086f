"""BEPageCacheSuppress in the agent: when pods are looked at, what is logged, and its metrics."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from koordebpf.errors import KernelFileError
from koordebpf.state.build import view_of_frame
from koordebpf.strategies.page_cache.decide import PageCacheDecision, PageCacheState
from koordebpf.strategies.page_cache.run import PageCacheMetrics, PageCacheRunner
from koordebpf.strategies.page_cache.values import PageCacheMeasured
from tests.support.values.builders import frame

MEASURED = frame([]).measured
CALM = PageCacheDecision(state=PageCacheState(), reason="no latency-sensitive pod refaults")
LIMITED = replace(CALM, reason="pod ls refaults", limited_pods=2, limited_bytes=8192, refaults_per_s=300.0)
FAILED = replace(CALM, reason="they are lifted", failed=True, refaults_per_s=300.0)


class Rig:
    def __init__(self, measure: Any = PageCacheMeasured) -> None:
        self.collector: Any = SimpleNamespace(measure=measure, is_active=False)
        self.metrics = PageCacheMetrics()
        self.runner = PageCacheRunner(self.collector, self.metrics)

    def round(self, *decisions: PageCacheDecision) -> None:
        for made in decisions:
            self.runner.carry_out({"bePageCacheSuppress": made}, view_of_frame(frame([])))

    def metric(self, name: str) -> float:
        return next(each.samples[0].value for each in self.metrics.families() if each.name == name)


def test_it_is_measured_in_rounds_and_not_in_samples() -> None:
    rig = Rig()
    assert rig.runner.measure(MEASURED, is_sample=True) == MEASURED
    found = rig.runner.measure(MEASURED, is_sample=False)
    assert found.parts == {"bePageCacheSuppress": PageCacheMeasured(MEASURED.now_ns)}
    assert rig.runner.poll_due(0) is False


def test_what_cannot_be_measured_leaves_a_round_without_it(caplog: pytest.LogCaptureFixture) -> None:
    def measure(now_ns: int) -> None:
        raise KernelFileError("/proc/vmstat", "", "must be rows")

    rig = Rig(measure)
    assert [rig.runner.measure(MEASURED, is_sample=False).parts for _ in range(2)] == [{}, {}]
    assert caplog.text.count("/proc/vmstat") == 1


def test_pods_are_looked_at_while_any_is_limited_or_refaults() -> None:
    rig = Rig()
    for made, is_active in ((CALM, False), (LIMITED, True), (FAILED, True), (CALM, False)):
        rig.round(made)
        assert rig.collector.is_active is is_active
    rig.round(LIMITED, replace(CALM, skipped="not_due"))
    assert rig.collector.is_active


def test_limits_are_logged_when_they_begin_fail_and_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    Rig().round(CALM, LIMITED, LIMITED, FAILED, CALM, LIMITED, CALM, CALM)
    assert [each.message.removeprefix("page cache: ") for each in caplog.records] == [
        LIMITED.reason,
        FAILED.reason,
        LIMITED.reason,
        CALM.reason,
    ]


def test_metrics_are_those_of_the_last_look_and_trials_are_counted() -> None:
    rig = Rig()
    rig.round(LIMITED, FAILED, LIMITED)
    assert rig.metric("koordebpf_page_cache_limited_pods") == 2
    assert rig.metric("koordebpf_page_cache_limit_bytes") == 8192
    assert rig.metric("koordebpf_page_cache_refaults_per_second") == 300
    assert rig.metric("koordebpf_page_cache_refault_bytes_per_second") == 300 * os.sysconf("SC_PAGE_SIZE")
    assert rig.metric("koordebpf_page_cache_failed_trials") == 1
