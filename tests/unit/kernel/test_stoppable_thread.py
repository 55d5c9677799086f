"""A thread that waits for a descriptor or a deadline, and its end."""

from __future__ import annotations

import os
import select
import threading
import time

import pytest

from koordebpf.kernel.io.worker import StoppableThread, Stopped
from koordebpf.units import NS_PER_MS
from tests.contract.apiserver import until


def test_it_begins_with_what_is_run_first_and_ends_by_itself():
    steps: list[str] = []
    thread = StoppableThread("t", lambda: steps.append("run"), lambda: steps.append("begin"))
    thread.start()
    thread.close()
    assert steps == ["begin", "run"]


def test_closing_ends_a_wait_without_a_deadline_and_the_thread():
    ended: list[type[BaseException]] = []

    def run() -> None:
        try:
            thread.wait(None)
        except Stopped as error:
            ended.append(type(error))
            raise

    thread = StoppableThread("stopped", run)
    thread.start()
    thread.close()
    thread.close()
    assert ended == [Stopped]
    assert not [each for each in threading.enumerate() if each.name == "stopped"]


@pytest.mark.parametrize(("is_written", "events"), [(True, select.POLLIN), (False, select.POLLOUT)])
def test_a_descriptor_that_is_ready_ends_a_wait(is_written, events):
    found: list[bool] = []
    fd = os.eventfd(int(is_written), os.EFD_NONBLOCK)
    with StoppableThread("t", lambda: found.append(thread.wait(None, fd, events))) as thread:
        thread.start()
        until(lambda: found, "the end of the wait")
    os.close(fd)
    assert found == [True]


def test_a_wait_ends_at_its_deadline():
    found: list[bool] = []
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    until_ns = time.monotonic_ns() + 20 * NS_PER_MS
    with StoppableThread("t", lambda: found.append(thread.wait(until_ns, fd))) as thread:
        thread.start()
        until(lambda: found, "the end of the wait")
    os.close(fd)
    assert found == [False]
    assert time.monotonic_ns() >= until_ns


def test_one_that_was_never_started_is_closed_at_once():
    thread = StoppableThread("idle", lambda: None)
    thread.close()
    thread.close()
    assert not [each for each in threading.enumerate() if each.name == "idle"]
