"""PSI on the running kernel: the file is read, and a trigger is granted or refused with its reason."""

from __future__ import annotations

import mmap
import os
import select
import signal
import tempfile
from pathlib import Path

import pytest

from koordebpf.errors import CgroupGone, SupportError
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.proc.psi import FALLBACK_WINDOWS_US, NODE_MEMORY_PRESSURE, PressureFile, PsiTrigger, PsiTriggers
from koordebpf.units import MIB
from tests.conftest import OTHER_MACHINE

ASKED_US = 50_000


@pytest.fixture(autouse=True)
def node_psi(require_root: None) -> None:
    if not NODE_MEMORY_PRESSURE.exists():
        pytest.skip(f"{OTHER_MACHINE}its kernel accounts no pressure")


def test_the_node_file_is_read_again_and_again_through_one_fd() -> None:
    with PressureFile() as file:
        first, second = file.read(), file.read()
    assert second.some.total_us >= first.some.total_us
    assert first.full is not None and first.full.total_us <= first.some.total_us


@pytest.mark.parametrize("kind", ["some", "full"])
def test_a_trigger_is_granted_in_the_shortest_window_the_kernel_allows(kind: str) -> None:
    with PsiTrigger(NODE_MEMORY_PRESSURE, kind, 5_000, ASKED_US) as trigger:  # type: ignore[arg-type]
        windows = (ASKED_US, *FALLBACK_WINDOWS_US)
        assert trigger.window_us in windows
        # One reason for each shorter window, none for the granted one.
        assert len(trigger.refused) == windows.index(trigger.window_us)
        with select.epoll() as epoll:
            epoll.register(trigger.fileno(), select.EPOLLPRI)
            assert epoll.poll(0) == [] or epoll.poll(0) == []  # a stall at this very moment wakes once at most


def test_a_window_no_kernel_grants_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(SupportError, match="CAP_SYS_RESOURCE"):
        PsiTrigger(NODE_MEMORY_PRESSURE, "some", 1_000, 11_000_000)  # a window is at most 10 s


def test_a_stall_longer_than_its_window_is_refused() -> None:
    with pytest.raises(ValueError, match="60000"):
        PsiTrigger(NODE_MEMORY_PRESSURE, "some", 60_000, 50_000)


def test_a_cgroup_of_its_own(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> None:
    path = memory_cgroup / "memory.pressure"
    if not path.exists():
        with pytest.raises(SupportError, match="cgroup v2 only"):
            PressureFile(path)
        return
    with PressureFile(path) as file, PsiTrigger(path) as trigger:
        assert file.read().some.total_us == 0
        memory_cgroup.rmdir()
        with pytest.raises(CgroupGone):
            file.read()
        with select.epoll() as epoll:
            epoll.register(trigger.fileno(), select.EPOLLPRI)
            assert epoll.poll(1)[0][1] & select.EPOLLERR
    with pytest.raises(CgroupGone):
        PressureFile(path)


def test_a_cgroups_trigger_fires_when_its_tasks_stall(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> None:
    if hierarchy.version == 1:
        pytest.skip("not this kind of machine: cgroups have memory.pressure on cgroup v2 only")
    (memory_cgroup / "memory.max").write_text(str(16 * MIB))
    with PsiTrigger(memory_cgroup / "memory.pressure") as trigger, select.epoll() as epoll:
        epoll.register(trigger.fileno(), select.EPOLLPRI)
        pid = os.fork()
        if pid == 0:
            try:
                (memory_cgroup / "cgroup.procs").write_text(str(os.getpid()))
                with tempfile.TemporaryFile(dir="/var/tmp") as file:
                    file.truncate(64 * MIB)
                    with mmap.mmap(file.fileno(), 64 * MIB) as memory:
                        while True:
                            for page in range(0, 64 * MIB, mmap.PAGESIZE):
                                memory[page] = 1
            finally:
                os._exit(0)
        try:
            assert epoll.poll(30) == [(trigger.fileno(), select.EPOLLPRI)]
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    with PressureFile(memory_cgroup / "memory.pressure") as file:
        assert file.read().some.total_us >= trigger.stall_us


def test_an_open_file_takes_one_trigger_and_a_second_leaves_the_first(hierarchy: MemoryHierarchy) -> None:
    with PsiTrigger() as trigger, PsiTrigger() as another:
        with pytest.raises(OSError, match="busy"):
            os.write(trigger.fileno(), f"some 1000 {trigger.window_us}\0".encode())
        assert another.window_us == trigger.window_us
        with select.epoll() as epoll:
            epoll.register(trigger.fileno(), select.EPOLLPRI)
            assert not any(events & select.EPOLLERR for _, events in epoll.poll(0))


def test_triggers_follow_the_cgroups_that_are_wanted(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> None:
    if hierarchy.version == 1:
        pytest.skip("not this kind of machine: cgroups have memory.pressure on cgroup v2 only")
    paths = {}
    for number in range(5):
        path = memory_cgroup / f"pod{number}"
        path.mkdir()
        paths[path.stat().st_ino] = path
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    triggers = PsiTriggers(max_triggers=3)
    new, closed = triggers.keep_only(paths)
    assert (len(new), closed, len(triggers)) == (3, [], 3)
    assert triggers.keep_only(paths) == ([], [])
    gone = min(paths)
    paths.pop(gone).rmdir()
    more, closed = triggers.keep_only(paths)
    assert (len(more), len(closed), len(triggers)) == (1, 1, 3)
    missing = memory_cgroup / "never"
    assert triggers.keep_only({1: missing})[0] == []
    assert triggers.refused is not None and "gone" in triggers.refused
    triggers.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
