"""Threads that outlive an unexpected error."""

from __future__ import annotations

import gc
import logging
import threading

import pytest

from koordebpf.kernel.io import worker as module
from koordebpf.kernel.io.worker import Supervisor, Worker, thread_errors, thread_problems
from koordebpf.report.http.routes import Health
from tests.contract.apiserver import until
from tests.support.patience import patience


def test_jobs_are_done_in_order_and_the_thread_ends_after_them() -> None:
    done: list[int] = []
    began = threading.Event()
    worker = Worker("w-order", done.append, most=1000, begin=began.set)
    assert all(worker.submit(each) for each in range(100))
    assert worker.close(patience(5))
    assert done == list(range(100))
    assert began.is_set()


def test_an_unexpected_error_harms_its_own_job_and_is_said_once_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    def work(job: int) -> None:
        if job < 3:
            raise ZeroDivisionError(f"job {job}")
        done.append(job)

    worker = Worker("w-fails", work, most=10)
    for each in range(3):
        worker.submit(each)
    until(lambda: worker.supervisor.failures == 3, "three errors")
    assert thread_errors()["w-fails"] == 3
    assert thread_problems()["w-fails"] == "ZeroDivisionError: job 2"
    assert Health().checks(0)["thread w-fails"] == "an unexpected error: ZeroDivisionError: job 2"
    worker.submit(3)
    assert worker.close(patience(5))
    assert done == [3]
    assert "w-fails" not in thread_problems()
    said = [
        each.getMessage() for each in caplog.records if "w-fails" in each.getMessage() and each.levelname == "ERROR"
    ]
    assert len(said) == 1


def test_what_finds_no_place_is_counted_and_the_end_always_has_one() -> None:
    is_over, is_busy, done = threading.Event(), threading.Event(), []

    def work(job: int) -> None:
        is_busy.set()
        is_over.wait(patience(10))
        done.append(job)

    worker = Worker("w-full", work, most=2)
    worker.submit(0)
    assert is_busy.wait(patience(5))
    assert [worker.submit(each) for each in (1, 2, 3)] == [True, True, False]
    assert worker.dropped == 1
    assert not worker.close(0)  # it is busy
    assert worker.dropped == 2
    is_over.set()
    worker.thread.join(patience(5))
    assert done == [0, 2]


def test_a_run_begins_again_until_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REST_S", 0.0)
    runs: list[int] = []

    def run() -> None:
        runs.append(len(runs))
        if len(runs) < 4:
            raise RuntimeError("not yet")

    supervisor = Supervisor("w-again")
    thread = supervisor.thread(run, again=True)
    thread.start()
    thread.join(patience(5))
    assert (runs, supervisor.failures, supervisor.problem) == ([0, 1, 2, 3], 3, None)


def test_one_that_is_gone_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor("w-gone")
    with caplog.at_level(logging.CRITICAL, module.log.name):  # a record would have the frame
        supervisor.call(lambda: 1 / 0)
    assert "w-gone" in thread_problems()
    del supervisor
    gc.collect()
    assert "w-gone" not in thread_problems()
