"""memory.reclaim that refuses, is not there, or ends: by the thread that writes it, and what proactive reclaim says.

On this kernel's cgroups, and over a fake of the file that answers each write(2) through the kernel. An agent that is
killed leaves nothing to restore: what was reclaimed comes back when it is used.
"""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from koordebpf.act.reclaimer import Reclaimer, ReclaimJob
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.state.build import view_of_frame
from koordebpf.strategies.proactive_reclaim.decide import ReclaimDecision, ReclaimOrder, ReclaimState
from koordebpf.strategies.proactive_reclaim.run import _TAKES_SWAPPINESS, ReclaimMetrics, ReclaimRunner, _release
from koordebpf.strategies.proactive_reclaim.values import ReclaimMeasured
from koordebpf.units import MIB
from tests.conftest import OTHER_MACHINE
from tests.host.fake_mount import mounted
from tests.support.kernel_files import KernelFile, KernelFolder
from tests.support.patience import patience
from tests.support.values.builders import frame

ASKED = 40 * MIB  # three pieces


class Thread:
    """A reclaimer, and what became of each job."""

    def __init__(self) -> None:
        self._is_done = threading.Semaphore(0)
        self.reclaimer = Reclaimer(self._is_done.release, is_urgent=False)

    def wait(self, jobs: int = 1) -> None:
        for _ in range(jobs):
            assert self._is_done.acquire(timeout=patience(10))

    def done(self, *jobs: ReclaimJob) -> list[FileChange]:
        for job in jobs:
            self.reclaimer.submit(job)
        self.wait(len(jobs))
        return list(self.reclaimer.drain())


@pytest.fixture
def thread() -> Iterator[Thread]:
    made = Thread()
    yield made
    made.reclaimer.close()


def job(path: Path, size_bytes: int = ASKED, *, swappiness: int | None = None) -> ReclaimJob:
    return ReclaimJob(path, path.stat().st_ino, size_bytes, "a test", 0, swappiness=swappiness)


class FakeReclaim:
    """memory.reclaim of some cgroups: it takes what is asked, or answers an error from the write of that number on."""

    def __init__(self, mount_point: Path) -> None:
        self.mount_point = mount_point
        self.taken: dict[str, list[str]] = {"poda": [], "podb": []}
        self.refusal: tuple[int, int] | None = None
        self._removed: set[str] = set()

    def root(self) -> KernelFolder:
        """Return what is at the mount point: two that have the file, and one that has not."""
        cgroups = {name: self._folder(name) for name in self.taken}
        return KernelFolder(self._folder, self._removed.add, podold=KernelFolder(), **cgroups)

    def _folder(self, name: str) -> KernelFolder:
        file = KernelFile(lambda: "", lambda text: self._write(name, text))
        return KernelFolder(**{"memory.reclaim": file})

    def _write(self, name: str, text: str) -> None:
        if name in self._removed:
            raise OSError(errno.ENODEV, "its cgroup is removed")
        if name == "poda" and self.refusal is not None and len(self.taken[name]) >= self.refusal[1]:
            raise OSError(self.refusal[0], "refused")
        self.taken[name].append(text)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeReclaim]:
    made = FakeReclaim(tmp_path / "cgroup")
    for _ in mounted(made.mount_point, made.root()):
        yield made


REFUSED, GONE, UNSUPPORTED, WRITTEN = (
    WriteResult.REFUSED,
    WriteResult.GONE,
    WriteResult.UNSUPPORTED,
    WriteResult.WRITTEN,
)
ANSWERS = {
    errno.EACCES: (REFUSED, "Permission denied"),
    errno.EINVAL: (REFUSED, "Invalid argument"),
    errno.EBUSY: (REFUSED, "Device or resource busy"),
    errno.EROFS: (REFUSED, "Read-only file system"),
    errno.ENODEV: (GONE, "the cgroup is gone"),
}


class TestFake:
    @pytest.mark.parametrize("after", [0, 1])
    @pytest.mark.parametrize("number", ANSWERS, ids=errno.errorcode.get)
    def test_an_error_ends_its_job_and_the_next_one_is_done(
        self, thread: Thread, fake: FakeReclaim, number: int, after: int
    ) -> None:
        fake.refusal = (number, after)
        first, second = thread.done(job(fake.mount_point / "poda"), job(fake.mount_point / "podb"))
        assert (first.result, first.detail) == ANSWERS[number]
        assert (second.result, second.detail) == (WRITTEN, "")
        assert [len(taken) for taken in fake.taken.values()] == [after, 3]

    def test_where_the_kernel_finds_no_more_it_says_how_much(self, thread: Thread, fake: FakeReclaim) -> None:
        fake.refusal = (errno.EAGAIN, 1)
        (change,) = thread.done(job(fake.mount_point / "poda"))
        assert (change.result, change.detail) == (WRITTEN, "16.0 MiB of it: the kernel found no more")

    def test_a_kernel_without_swappiness(self, thread: Thread, fake: FakeReclaim) -> None:
        fake.refusal = (errno.EINVAL, 0)
        (change,) = thread.done(job(fake.mount_point / "poda", swappiness=0))
        assert change.result is UNSUPPORTED
        assert "swappiness=0" in change.detail
        assert "It needs Linux 6.11" in change.detail

    def test_a_kernel_without_the_file(self, thread: Thread, fake: FakeReclaim) -> None:
        (change,) = thread.done(job(fake.mount_point / "podold"))
        assert change.result is UNSUPPORTED
        assert "It needs cgroup v2 and Linux 5.19" in change.detail

    @pytest.mark.parametrize("is_made_again", [False, True])
    def test_a_cgroup_that_is_gone_before_its_job(
        self, thread: Thread, fake: FakeReclaim, *, is_made_again: bool
    ) -> None:
        asked = job(fake.mount_point / "poda")
        asked.path.rmdir()
        if is_made_again:
            asked.path.mkdir()
        (change,) = thread.done(asked)
        assert (change.result, change.detail) == (GONE, "the cgroup is gone")
        assert fake.taken["poda"] == []

    def test_a_cgroup_that_is_removed_between_two_pieces(
        self, thread: Thread, fake: FakeReclaim, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, asked = os.write, job(fake.mount_point / "poda")

        def write(fd: int, data: bytes) -> int:
            done = real(fd, data)
            if threading.current_thread().name == "reclaimer" and asked.path.exists():
                asked.path.rmdir()
            return done

        monkeypatch.setattr(os, "write", write)
        (change,) = thread.done(asked)
        assert (change.result, change.detail) == (GONE, "the cgroup is gone")
        assert fake.taken["poda"] == [str(16 * MIB)]

    def test_a_mount_that_is_read_only(self, thread: Thread, fake: FakeReclaim, tmp_path: Path) -> None:
        mount_point = tmp_path / "read-only"
        mount_point.mkdir()
        for options in ("bind", "remount,bind,ro"):
            subprocess.run(["mount", "-o", options, str(fake.mount_point), str(mount_point)], check=True)
        try:
            (change,) = thread.done(job(mount_point / "poda"))
        finally:
            subprocess.run(["umount", str(mount_point)], check=True)
        assert (change.result, change.detail) == (REFUSED, "Read-only file system")


class TestThisKernel:
    def test_a_cgroup_that_is_gone(self, thread: Thread, memory_cgroup: Path) -> None:
        child = memory_cgroup / "gone"
        child.mkdir()
        asked = job(child)
        child.rmdir()
        (change,) = thread.done(asked)
        assert (change.result, change.detail) == (GONE, "the cgroup is gone")
        child.mkdir()  # another one of its name
        (change,) = thread.done(asked)
        assert (change.result, change.detail) == (GONE, "the cgroup is gone")

    def test_cgroup_v1_has_no_such_file(self, thread: Thread, memory_cgroup: Path, hierarchy: MemoryHierarchy) -> None:
        if hierarchy.version == 2:
            pytest.skip(f"{OTHER_MACHINE}cgroup v2 has memory.reclaim")
        (change,) = thread.done(job(memory_cgroup))
        assert change.result is UNSUPPORTED
        assert "It needs cgroup v2 and Linux 5.19" in change.detail

    def test_swappiness_is_taken_since_linux_6_11(
        self, thread: Thread, memory_cgroup: Path, hierarchy: MemoryHierarchy
    ) -> None:
        if hierarchy.version == 1 or not (memory_cgroup / "memory.reclaim").exists():
            pytest.skip(f"{OTHER_MACHINE}it has no memory.reclaim")
        plain, balanced = thread.done(job(memory_cgroup), job(memory_cgroup, swappiness=0))
        assert plain.result is WRITTEN  # and no more, of an empty one
        assert balanced.result is (WRITTEN if _release() >= _TAKES_SWAPPINESS else UNSUPPORTED)


class Part:
    """Proactive reclaim with the thread; what it measures and which pods there are is given."""

    def __init__(self, thread: Thread, mount_point: Path) -> None:
        self.thread, self.mount_point, self.reports = thread, mount_point, list[FileChange]()
        self.collector: Any = SimpleNamespace(
            measure=ReclaimMeasured, mount_point=mount_point, takes_swappiness=True, close=lambda: None
        )
        index: Any = SimpleNamespace(names_to_act_on=lambda uid: (uid,))
        self.metrics = ReclaimMetrics()
        self.part = ReclaimRunner(self.collector, index, thread.reclaimer, self.metrics, self.reports.append)

    def order(self, uid: str, swappiness: int | None = None) -> ReclaimOrder:
        path = self.mount_point / f"pod{uid}"
        return ReclaimOrder(uid, path.stat().st_ino, path.name, 2 * MIB, swappiness)

    def carry_out(self, *orders: ReclaimOrder) -> None:
        """Have it done; then nothing is being done, and it is measured again."""
        decided = ReclaimDecision(state=ReclaimState(), reason="some is taken", orders=orders)
        self.part.carry_out({"proactiveReclaim": decided}, view_of_frame(frame([])))
        self.thread.wait(len(orders))
        assert self.part.measure(frame([]).measured, is_sample=False).parts

    def counted(self, result: WriteResult) -> float:
        taken = next(each for each in self.metrics.families() if each.name == "koordebpf_proactive_reclaim_bytes")
        return sum(each.value for each in taken.samples if each.labels["result"] == result.value)


class TestPart:
    @pytest.fixture
    def part(self, thread: Thread, fake: FakeReclaim) -> Part:
        return Part(thread, fake.mount_point)

    def test_a_pod_that_ended_between_decision_and_write_is_no_problem(
        self, part: Part, fake: FakeReclaim, caplog: pytest.LogCaptureFixture
    ) -> None:
        gone, other = part.order("a"), part.order("b")
        (fake.mount_point / "poda").rmdir()
        part.carry_out(gone, other)
        assert caplog.text == ""
        assert fake.taken == {"poda": [], "podb": [str(2 * MIB)]}
        assert (part.counted(GONE), part.counted(WRITTEN)) == (2 * MIB, 2 * MIB)

    def test_a_pod_that_was_made_again_under_its_name_is_left_alone(self, part: Part, fake: FakeReclaim) -> None:
        gone = part.order("a")
        (fake.mount_point / "poda").rmdir()
        (fake.mount_point / "poda").mkdir()
        part.carry_out(gone)
        assert fake.taken["poda"] == []
        assert part.counted(GONE) == 2 * MIB

    def test_a_kernel_without_swappiness_is_remembered(
        self, part: Part, fake: FakeReclaim, caplog: pytest.LogCaptureFixture
    ) -> None:
        fake.refusal = (errno.EINVAL, 0)
        part.carry_out(part.order("a", 0))
        assert part.collector.takes_swappiness is False
        assert "It needs Linux 6.11" in caplog.text
        assert part.counted(UNSUPPORTED) == 2 * MIB

    def test_a_kernel_without_the_file_is_named(self, part: Part, caplog: pytest.LogCaptureFixture) -> None:
        part.carry_out(part.order("old"))
        assert "It needs cgroup v2 and Linux 5.19" in caplog.text
        assert part.counted(UNSUPPORTED) == 2 * MIB

    @pytest.mark.parametrize("number", [errno.EACCES, errno.EINVAL, errno.EBUSY, errno.EROFS], ids=errno.errorcode.get)
    def test_a_refusal_is_named_and_other_pods_are_asked(
        self, part: Part, fake: FakeReclaim, caplog: pytest.LogCaptureFixture, number: int
    ) -> None:
        caplog.set_level(logging.WARNING)
        fake.refusal = (number, 0)
        part.carry_out(part.order("a"), part.order("b"))
        assert f"{fake.mount_point}/poda/memory.reclaim: {os.strerror(number)}" in caplog.text
        assert fake.taken == {"poda": [], "podb": [str(2 * MIB)]}
        assert (part.counted(REFUSED), part.counted(WRITTEN)) == (2 * MIB, 2 * MIB)
