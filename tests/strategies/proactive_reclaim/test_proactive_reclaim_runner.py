"""Proactive reclaim in the agent: what is asked of the kernel, when it is measured again, and what is reported."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from koordebpf.act.reclaimer import ReclaimJob
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.state.build import view_of_frame
from koordebpf.strategies.proactive_reclaim.decide import ReclaimDecision, ReclaimOrder, ReclaimState
from koordebpf.strategies.proactive_reclaim.run import ReclaimMetrics, ReclaimRunner
from koordebpf.strategies.proactive_reclaim.values import ReclaimMeasured
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import frame

MEASURED = frame([]).measured
ORDER = ReclaimOrder("a", 7, "kubepods/poda", 2 * MIB)
DECIDED = ReclaimDecision(state=ReclaimState(), reason="some is taken", orders=(ORDER,))


class Reclaimer:
    """Takes jobs, and answers what a test says."""

    def __init__(self) -> None:
        self.jobs: list[ReclaimJob] = []
        self.done: list[FileChange] = []

    def submit(self, job: ReclaimJob) -> None:
        self.jobs.append(job)

    def drain(self) -> list[FileChange]:
        done, self.done = self.done, []
        return done

    def close(self) -> None:
        self.jobs.clear()


class Rig:
    def __init__(self, *, names: tuple[str, ...] = ("a",), is_dry_run: bool = False) -> None:
        self.reclaimer = Reclaimer()
        self.collector: Any = SimpleNamespace(
            measure=ReclaimMeasured, mount_point=Path("/cg"), takes_swappiness=True, close=lambda: None
        )
        self.metrics, self.reports = ReclaimMetrics(), list[FileChange]()
        index: Any = SimpleNamespace(names_to_act_on=lambda uid: names)
        reclaimer: Any = None if is_dry_run else self.reclaimer
        self.runner = ReclaimRunner(self.collector, index, reclaimer, self.metrics, self.reports.append)

    def round(self, made: ReclaimDecision = DECIDED, at_s: int = 0) -> None:
        made_frame = frame([])
        at_ns = made_frame.measured.now_ns + at_s * NS_PER_S
        view = view_of_frame(replace(made_frame, measured=replace(made_frame.measured, now_ns=at_ns)))
        self.runner.carry_out({"proactiveReclaim": made}, view)

    def counted(self, result: str) -> float:
        taken = next(each for each in self.metrics.families() if each.name == "koordebpf_proactive_reclaim_bytes")
        return sum(each.value for each in taken.samples if each.labels["result"] == result)


def measured(rig: Rig, at_s: int = 0, *, is_sample: bool = False) -> ReclaimMeasured | None:
    at = replace(MEASURED, now_ns=MEASURED.now_ns + at_s * NS_PER_S)
    return rig.runner.measure(at, is_sample=is_sample).parts.get("proactiveReclaim")


def test_an_order_is_a_job_for_that_directory_and_pod() -> None:
    rig = Rig()
    rig.round()
    (job,) = rig.reclaimer.jobs
    assert (job.path, job.cgroup_id, job.size_bytes) == (Path("/cg/kubepods/poda"), 7, 2 * MIB)
    assert (job.pod_names, job.swappiness) == (("a",), None)


def test_while_a_job_is_not_done_nothing_is_measured() -> None:
    rig = Rig()
    assert measured(rig) is not None
    rig.round()
    assert measured(rig) is None
    rig.reclaimer.done = [rig.reclaimer.jobs[0].change(WriteResult.WRITTEN)]
    assert measured(rig) is not None
    assert rig.counted("written") == 2 * MIB


def test_in_a_sample_nothing_is_measured() -> None:
    assert measured(Rig(), is_sample=True) is None


def test_a_pod_that_is_known_no_more_is_not_asked() -> None:
    rig = Rig(names=())
    rig.round()
    assert rig.reclaimer.jobs == []


@pytest.mark.parametrize("skipped", ["not_due", "no_support"])
def test_what_was_not_decided_asks_for_nothing(skipped: str) -> None:
    rig = Rig()
    rig.round(replace(DECIDED, skipped=skipped, orders=()))
    assert rig.reclaimer.jobs == []


def test_a_kernel_that_takes_no_swappiness_is_remembered(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.round()
    rig.reclaimer.done = [rig.reclaimer.jobs[0].change(WriteResult.UNSUPPORTED, "It needs Linux 6.11")]
    measured(rig)
    assert rig.collector.takes_swappiness is False
    assert "It needs Linux 6.11" in caplog.text


def test_a_cgroup_that_is_gone_is_no_problem(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.round()
    rig.reclaimer.done = [rig.reclaimer.jobs[0].change(WriteResult.GONE, "the cgroup is gone")]
    assert measured(rig) is not None
    assert caplog.text == ""


def test_what_was_taken_is_reported_once_a_minute_and_pod() -> None:
    rig = Rig()
    for second in range(0, 61, 6):
        rig.round(at_s=second)
        rig.reclaimer.done = [rig.reclaimer.jobs.pop().change(WriteResult.WRITTEN)]
        assert measured(rig, second) is not None
    (change,) = rig.reports
    assert (change.path, change.owner) == ("/cg/kubepods/poda/memory.reclaim", "proactiveReclaim")
    assert change.detail == "20.0 MiB in 10 steps"


def test_a_dry_run_counts_what_it_would_have_asked_for() -> None:
    rig = Rig(is_dry_run=True)
    rig.round()
    assert rig.counted("dry_run") == 2 * MIB
    assert measured(rig) is not None
    rig.runner.close()


def test_who_holds_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    caplog.set_level("INFO")
    held = replace(DECIDED, orders=(), held_by="ls", reason="nothing is taken: pod ls stalls for memory")
    for _ in range(3):
        rig.round(held)
    assert caplog.text.count("pod ls stalls for memory") == 1
    rig.round()
    assert [record.getMessage() for record in caplog.records] == [f"proactive reclaim: {held.reason}"]
