"""Pods with more cgroups than expected, or with processes that may not be signalled: they die, or it is said."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from koordebpf.act.evict.cgroup import how_it_ended
from koordebpf.kernel.cgroup.kill import Kill, kill_cgroup
from koordebpf.kernel.cgroup.subtree import directories, may_hold, pids
from koordebpf.state.outcome import Result
from koordebpf.units import NS_PER_S
from tests.conftest import OTHER_MACHINE
from tests.host.test_kill import HERE, Site, kill, wait_until
from tests.host.test_kill import site as site  # noqa: PLC0414 - a fixture
from tests.support.hierarchies import remove_when_empty
from tests.support.nested import join, nest, remove_nest
from tests.support.patience import patience

SLEEP = f"import signal; signal.alarm({patience(60):.0f}); signal.pause()"
DEEP = [1_100, 2_300]  # beyond Python's recursion, and beyond PATH_MAX even with names of one letter


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", SLEEP])
    yield process
    process.kill()
    process.wait()


def remove_all(site: Site) -> None:
    for base in (site.path, site.freezer):
        if base is not None:
            remove_nest(base)


@pytest.mark.slow
@pytest.mark.parametrize("levels", DEEP)
def test_a_process_at_the_end_of_a_chain_dies(site: Site, sleeper: subprocess.Popen[bytes], levels: int) -> None:
    try:
        last_fd = nest(site.path, levels)
        join(last_fd, sleeper.pid)
        os.close(last_fd)
        if site.freezer is not None:
            last_fd = nest(site.freezer, levels)
            join(last_fd, sleeper.pid)
            state = os.open("freezer.state", os.O_WRONLY, dir_fd=last_fd)
            os.write(state, b"FROZEN")  # as a container may pause itself
            os.close(state)
            os.close(last_fd)
        open_fds = len(list(Path("/proc/self/fd").iterdir()))
        started = time.monotonic()
        with Kill.begin(site.target()) as kill:
            assert time.monotonic() - started < patience(10)
            report = kill.finish(deadline_ns=time.monotonic_ns() + int(patience(10)) * NS_PER_S)
        assert report.left_tasks == 0 and report.empty_ns is not None
        assert sleeper.wait(patience(5)) == -signal.SIGKILL
        assert len(list(Path("/proc/self/fd").iterdir())) <= open_fds
    finally:
        sleeper.kill()
        remove_all(site)


def test_a_process_among_thousands_of_empty_cgroups_dies(site: Site, sleeper: subprocess.Popen[bytes]) -> None:
    names = [f"c{number}" for number in range(2_000)]
    try:
        for name in names:
            (site.path / name).mkdir()
        (site.path / names[1_000] / "cgroup.procs").write_text(str(sleeper.pid))
        report = kill(site)
        assert report.left_tasks == 0
        assert sleeper.wait(patience(5)) == -signal.SIGKILL
    finally:
        sleeper.kill()
        sleeper.wait()
        for name in names:
            remove_when_empty(site.path / name)


def test_the_first_look_is_a_short_one(
    site: Site, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int | None] = []

    def counted(top_fd: int, most: int | None = None) -> set[int] | None:
        looks.append(most)
        return pids(top_fd, most)

    monkeypatch.setattr("koordebpf.kernel.cgroup.kill.pids", counted)
    (site.path / "cgroup.procs").write_text(str(sleeper.pid))
    with Kill.begin(site.target()) as kill:
        assert set(looks) == {512}
        looks.clear()
        report = kill.finish(deadline_ns=time.monotonic_ns() + int(patience(10)) * NS_PER_S)
    assert report.left_tasks == 0
    # The kernel itself has met all of them, or they are looked into now.
    assert set(looks) == ({512} if report.method == "cgroup.kill" else {None})


def test_every_directory_is_met_once_parents_first(site: Site) -> None:
    for name in ("a", "a/b", "a/c", "a/c/d", "e"):
        (site.path / name).mkdir(parents=True, exist_ok=True)
    top_fd = os.open(site.path, os.O_RDONLY | os.O_DIRECTORY)
    met = [Path(f"/proc/self/fd/{fd}").readlink() for fd in directories(top_fd)]
    few = [Path(f"/proc/self/fd/{fd}").readlink() for fd in directories(top_fd, 3)]
    os.close(top_fd)
    assert met[0] == site.path and few == met[:3]
    assert {str(each.relative_to(site.path)) for each in met} == {".", "a", "a/b", "a/c", "a/c/d", "e"}
    assert all(met.index(each) > met.index(each.parent) for each in met[1:])
    assert len(met) == 6


@pytest.mark.slow
def test_who_may_be_below_is_not_looked_for_without_end(site: Site, sleeper: subprocess.Popen[bytes]) -> None:
    assert not may_hold(site.path, sleeper.pid)
    (site.path / "a").mkdir()
    (site.path / "a/cgroup.procs").write_text(str(sleeper.pid))
    assert may_hold(site.path, sleeper.pid)
    assert not may_hold(site.path / "none", sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    remove_when_empty(site.path / "a")
    try:
        os.close(nest(site.path, 1_100))
        assert may_hold(site.path, 1)
    finally:
        remove_nest(site.path)


def test_one_process_that_may_not_be_signalled_does_not_save_the_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What AppArmor and SELinux answer: EACCES. On cgroup v2 cgroup.kill asks neither of them.
    children = [site.spawn(SLEEP) for _ in range(3)]
    wait_until(lambda: len(site.pids()) == 3)
    spared = min(child.pid for child in children)
    send = signal.pidfd_send_signal

    def refuse(pidfd: int, number: int) -> None:
        info = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
        if number and f"Pid:\t{spared}\n" in info:
            raise PermissionError(13, "Permission denied")
        send(pidfd, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    started = time.monotonic()
    report = kill(site, seconds=10)
    codes = {child.pid: child.poll() if child.pid == spared else child.wait(patience(5)) for child in children}
    if report.method == "cgroup.kill":
        assert report.refusals == () and set(codes.values()) <= {-9, None}
        return
    assert time.monotonic() - started < patience(9)  # no other process is waited for
    assert {pid: code for pid, code in codes.items() if pid != spared} == {
        child.pid: -9 for child in children if child.pid != spared
    }
    assert codes[spared] is None
    assert (report.killed_tasks, report.left_tasks, report.refusals) == (2, 1, ((spared, "Permission denied"),))
    result, detail = how_it_ended(report, site.target())
    assert result is Result.FAILED
    assert detail.startswith(f"1 processes live on, 1 of which this agent may not signal (pid {spared}: Permission")


@pytest.mark.skipif("v2" not in HERE, reason=f"{OTHER_MACHINE}it has no cgroup v2")
@pytest.mark.parametrize("site", ["v2"], indirect=True)
def test_a_pid_that_is_another_ones_by_now_keeps_its_nice_level(
    site: Site, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first look stands for one before the pid was reused by a process outside of the cgroup.
    looks = iter([{sleeper.pid}])
    real = Kill._pids
    monkeypatch.setattr(Kill, "_pids", lambda kill: next(looks, None) or real(kill))
    kill_cgroup(site.target(), deadline_ns=time.monotonic_ns() + NS_PER_S, release_early=False)
    assert os.getpriority(os.PRIO_PROCESS, sleeper.pid) == os.getpriority(os.PRIO_PROCESS, 0)
    assert sleeper.poll() is None


def leave(site: Site, pid: int) -> None:
    for base in (site.path, site.freezer):
        if base is not None:
            (base.parent / "cgroup.procs").write_text(str(pid))


def test_who_has_left_by_the_time_of_the_signal_is_not_killed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    # It leaves at the moment in which its pid is opened: it stands for another process that has this pid by then.
    stays, leaves = site.spawn(SLEEP), site.spawn(SLEEP)
    wait_until(lambda: len(site.pids()) == 2)
    real = os.pidfd_open

    def opened(pid: int) -> int:
        if pid == leaves.pid:
            leave(site, pid)
        return real(pid)

    monkeypatch.setattr(os, "pidfd_open", opened)
    report = kill(site)
    assert (report.killed_tasks, report.left_tasks) in ((1, 0), (2, 0))  # by cgroup.kill all are taken to be killed
    assert stays.wait(patience(5)) == -signal.SIGKILL
    with pytest.raises(subprocess.TimeoutExpired):
        leaves.wait(0.05)
    assert os.getpriority(os.PRIO_PROCESS, leaves.pid) == os.getpriority(os.PRIO_PROCESS, 0)


def test_nor_is_it_on_kernels_without_cgroup_kill(site: Site, sleeper: subprocess.Popen[bytes]) -> None:
    # Of Linux before 5.14: what was read before it left goes to the signals one by one.
    stays = site.spawn(SLEEP)
    wait_until(lambda: len(site.pids()) == 1)
    with contextlib.closing(Kill(site.target(), os.open(site.path, os.O_RDONLY | os.O_DIRECTORY))) as killing:
        killing._signal({stays.pid, sleeper.pid}, None)
    assert stays.wait(patience(5)) == -signal.SIGKILL
    with pytest.raises(subprocess.TimeoutExpired):
        sleeper.wait(0.05)


# A container's monitor in a cgroup of its own within the pod, as CRI-O's with conmon_cgroup=pod: it is the container's
# parent, and writes down how that ended.
MONITOR = """
import os, signal, sys
signal.alarm(60)
pid = os.fork()
if not pid:
    for procs in sys.argv[2:]:
        open(procs, "w").write("0")
    signal.alarm(60)
    signal.pause()
ended = os.waitpid(pid, 0)[1]
open(sys.argv[1], "w").write(str(ended))
"""


def test_a_monitor_in_the_pods_cgroup_reports_sigkill_or_dies_with_it(site: Site, tmp_path: Path) -> None:
    # By cgroup.kill its container dies before it, so that CRI-O and the kubelet see the pod end. Without cgroup.kill
    # both are signalled at once, and the pod is taken to run until its object is deleted.
    exit_file, container = tmp_path / "exit", "crio-" + "a" * 64
    bases = [base for base in (site.path, site.freezer) if base is not None]
    for base in bases:
        (base / container).mkdir()
    monitor = site.spawn(
        MONITOR, str(exit_file), *(str(base / container / "cgroup.procs") for base in bases), below="crio-conmon-a"
    )
    wait_until(lambda: (site.path / container / "cgroup.procs").read_text() != "")
    report = kill(site)
    assert (report.killed_tasks, report.left_tasks) == (2, 0)
    code = monitor.wait(patience(5))
    if report.method == "cgroup.kill":
        assert (code, exit_file.read_text()) == (0, "9")
        return
    assert code == -signal.SIGKILL
    assert not exit_file.exists()


# It does not end when its container does.
STAYING = MONITOR.replace("os.waitpid(pid, 0)[1]", "os.waitpid(pid, 0)[1]; signal.pause()")


def test_what_is_called_a_monitor_and_stays_is_killed(site: Site, tmp_path: Path) -> None:
    bases = [base for base in (site.path, site.freezer) if base is not None]
    container = "crio-" + "a" * 64
    for base in bases:
        (base / container).mkdir()
    procs = [str(base / container / "cgroup.procs") for base in bases]
    monitor = site.spawn(STAYING, str(tmp_path / "exit"), *procs, below="crio-conmon-a")
    wait_until(lambda: (site.path / container / "cgroup.procs").read_text() != "")
    report = kill(site)
    assert (report.killed_tasks, report.left_tasks) == (2, 0)
    assert monitor.wait(patience(5)) == -signal.SIGKILL


def test_a_kill_of_no_process_whose_memory_stays_is_not_done(memory_cgroup: Path, tmp_path: Path) -> None:
    kind = "v2" if (memory_cgroup / "cgroup.controllers").exists() else "v1-bare"
    site = Site(memory_cgroup, 2 if kind == "v2" else 1, None)
    file = Path(f"/dev/shm/koordebpf-held-{os.getpid()}")
    try:
        script = f"echo $$ > {memory_cgroup}/cgroup.procs; head -c {8 << 20} /dev/zero > {file}"
        subprocess.run(["sh", "-c", script], check=True)
        wait_until(lambda: site.pids() == [])
        report = kill(site)
        assert report.killed_tasks == 0 and report.empty_ns is not None
        result, detail = how_it_ended(report, site.target())
        assert result is Result.FAILED and detail.startswith("no process was found in it, and it still holds ")
    finally:
        file.unlink(missing_ok=True)
    assert how_it_ended(msgspec.structs.replace(report, killed_tasks=1), site.target())[0] is Result.DONE
    top_fd = os.open(memory_cgroup, os.O_RDONLY | os.O_DIRECTORY)
    assert pids(top_fd) == set()
    os.close(top_fd)
