"""The memory of several processes that are to die, released side by side."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup import reaping
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.cgroup.reaping import Reaping, resident_pages
from koordebpf.kernel.host.support import support_of_files
from tests.conftest import OTHER_MACHINE
from tests.support.loads.workloads import Holder
from tests.support.patience import patience

HELD_MIB = 48


class Dying:
    """Processes that are stopped, so that a SIGKILL ends none before its memory is released."""

    def __init__(self, container: Path, number: int) -> None:
        self.holders = [Holder(container, "anon", HELD_MIB) for _ in range(number)]
        self.pidfds = [(each.process.pid, os.pidfd_open(each.process.pid)) for each in self.holders]

    def kill(self) -> None:
        for _, pidfd in self.pidfds:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def close(self) -> None:
        for _, pidfd in self.pidfds:
            os.close(pidfd)
        for each in self.holders:
            each.stop()


@pytest.fixture
def dying(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> Iterator[Dying]:
    release = next(each for each in support_of_files(hierarchy) if "early" in each.signal or "release" in each.signal)
    if not release.works:
        pytest.skip(f"{OTHER_MACHINE}{release.reason}")
    made = Dying(memory_cgroup, 4)
    yield made
    made.close()


def test_each_is_released_or_has_freed_it_by_itself_and_the_end_is_announced_once(dying: Dying) -> None:
    announced: list[float] = []
    dying.kill()
    work = Reaping(dying.pidfds, lambda: announced.append(time.monotonic()))
    work.run()
    assert len(announced) == 1 and work.released <= len(dying.pidfds)
    for each in dying.holders:
        assert each.process.wait(patience(10)) == -signal.SIGKILL


def test_who_is_not_to_die_keeps_its_memory(dying: Dying) -> None:
    before = [resident_pages(pid) for pid, _ in dying.pidfds]
    announced = threading.Event()
    work = Reaping(dying.pidfds, announced.set)
    work.run()
    assert work.released == 0 and announced.is_set()
    assert [resident_pages(pid) for pid, _ in dying.pidfds] == before


def test_one_reaper_releases_all_of_them(dying: Dying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaping, "_MOST_REAPERS", 1)
    announced: list[int] = []
    dying.kill()
    Reaping(dying.pidfds, lambda: announced.append(1)).run()
    assert announced == [1]


def test_there_may_be_no_one() -> None:
    work = Reaping((), lambda: pytest.fail("announced"))
    work.run()
    assert work.released == 0


def test_a_thread_that_cannot_be_started_leaves_it_to_the_first(dying: Dying, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    dying.kill()
    work = Reaping(dying.pidfds, lambda: None)
    monkeypatch.setattr(threading.Thread, "start", refused)
    work.run()
    monkeypatch.undo()
    for each in dying.holders:
        assert each.process.wait(patience(10)) == -signal.SIGKILL
