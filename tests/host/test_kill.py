"""Real process trees in real cgroups: the target dies, all of it, and nothing else."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Queue

import msgspec
import pytest

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.cgroup import CgroupExecutor, UnfinishedKill, finish_kill, frozen_by
from koordebpf.errors import ActuationError, CgroupGone
from koordebpf.kernel.cgroup.kill import Kill, KillReport, KillTarget, kill_cgroup
from koordebpf.kernel.cgroup.subtree import has_process, tasks_of
from koordebpf.policy.plan import Candidate, Holding, Victim
from koordebpf.state.amount import MEMORY
from koordebpf.state.outcome import Outcome, Result
from koordebpf.units import NS_PER_S
from tests.conftest import OTHER_MACHINE
from tests.support.hierarchies import remove_tree
from tests.support.patience import patience

V1_MEMORY = Path("/sys/fs/cgroup/memory")
V1_FREEZER = Path("/sys/fs/cgroup/freezer")
V2_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))

# A tree that forks 50 times a second, each child alive as long as its parent, up to 200; gone after 120 s by itself.
FORKER = """
import os, signal, time
signal.alarm(120)
for _ in range(200):
    if os.fork() == 0:
        signal.alarm(120)
        signal.pause()
    time.sleep(0.02)
signal.pause()
"""
# Children fork on from themselves, so that killing the parents alone never ends it. 200 in all, by a bounded chain.
RUNNER = """
import os, signal, time
for _ in range(200):
    signal.alarm(5)
    time.sleep(0.02)
    if os.fork() != 0:
        os._exit(0)
signal.pause()
"""
HOG = """
import mmap, signal, sys
signal.alarm(30)
hog = mmap.mmap(-1, int(sys.argv[1]) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for offset in range(0, len(hog), 4096):
    hog[offset] = 1
print("full", flush=True)
signal.pause()
"""


class Site:
    """A cgroup of our own, with the directory of the same name in the freezer hierarchy where there is one."""

    def __init__(self, path: Path, version: int, freezer: Path | None) -> None:
        self.path, self.version, self.freezer = path, version, freezer
        self._children: list[subprocess.Popen[str]] = []

    def target(self) -> KillTarget:
        return KillTarget(self.path, self.path.stat().st_ino, 1 if self.version == 1 else 2, self.freezer)

    def spawn(self, code: str, *args: str, below: str = "") -> subprocess.Popen[str]:
        directories = [base / below for base in (self.path, self.freezer) if base is not None]
        for directory in directories:
            directory.mkdir(parents=True, exist_ok=True)

        def join() -> None:
            for directory in directories:
                (directory / "cgroup.procs").write_text("0")

        child = subprocess.Popen(
            [sys.executable, "-c", code, *args], preexec_fn=join, stdout=subprocess.PIPE, text=True
        )
        self._children.append(child)
        return child

    def pids(self) -> list[int]:
        return [int(pid) for file in self.path.rglob("cgroup.procs") for pid in file.read_text().split()]

    def close(self) -> None:
        # First, or a frozen task does not die: on v1 none does in the refrigerator.
        if self.freezer is not None and self.freezer.exists():
            for state in self.freezer.rglob("freezer.state"):
                state.write_text("THAWED")
        for child in self._children:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
        for base in (self.path, self.freezer):
            if base is not None and base.exists():
                for pid in self.pids():
                    with suppress(ProcessLookupError):
                        os.kill(pid, 9)
                remove_tree(base)


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + patience(seconds)
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("waited in vain")
        time.sleep(patience(0.005))


def _v1(with_freezer: bool) -> Site | None:
    if not (V1_MEMORY / "cgroup.procs").exists():
        return None
    if with_freezer and not V1_FREEZER.is_dir():
        return None
    name = f"koordebpf-kill-{os.getpid()}"
    return Site(V1_MEMORY / name, 1, V1_FREEZER / name if with_freezer else None)


def _v2() -> Site | None:
    # cgroup.kill needs no controller: on a hybrid host the unified hierarchy serves as well.
    for root in V2_ROOTS:
        if (root / "cgroup.controllers").exists():
            return Site(root / f"koordebpf-kill-{os.getpid()}", 2, None)
    return None


def _make(kind: str) -> Site | None:
    return _v2() if kind == "v2" else _v1(with_freezer=kind == "v1-freezer")


HERE = [kind for kind in ("v1-freezer", "v1-bare", "v2") if _make(kind) is not None]


@pytest.fixture(params=HERE)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    made = _make(request.param)
    assert made is not None
    if os.geteuid() != 0:
        pytest.skip("needs root to make cgroups")
    made.path.mkdir()
    if made.freezer is not None:
        made.freezer.mkdir()
    yield made
    made.close()


def kill(site: Site, seconds: float = 10) -> KillReport:
    return kill_cgroup(site.target(), deadline_ns=time.monotonic_ns() + int(patience(seconds) * NS_PER_S))


def test_everything_below_dies_and_a_bystander_lives(site: Site) -> None:
    bystander = subprocess.Popen(["sleep", "30"])
    try:
        children = [site.spawn("import time; time.sleep(30)", below=below) for below in ("", "a", "a/b", "a/b/c")]
        report = kill(site)
        assert report.killed_tasks == 4
        assert report.left_tasks == 0
        assert report.empty_ns is not None and report.empty_ns >= report.signalled_ns
        assert site.pids() == []
        assert [child.wait(patience(5)) for child in children] == [-9] * 4
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_tree_that_keeps_forking_dies(site: Site) -> None:
    site.spawn(FORKER)
    wait_until(lambda: len(site.pids()) > 20)
    report = kill(site)
    assert report.left_tasks == 0
    assert report.killed_tasks >= 20
    assert site.pids() == []


THREADS = """
import threading, time
for _ in range(3):
    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
print("up", flush=True)
time.sleep(30)
"""


@pytest.mark.skipif("v2" not in HERE, reason=f"{OTHER_MACHINE}it has no cgroup v2")
@pytest.mark.parametrize("site", ["v2"], indirect=True)
def test_threads_in_threaded_cgroups_are_found_and_die(site: Site) -> None:
    # GIVEN a program that put two of its threads into a threaded cgroup, and left another one "domain invalid"
    child = site.spawn(THREADS, below="c")
    assert child.stdout is not None and child.stdout.readline() == "up\n"
    threaded, invalid = site.path / "c/rt", site.path / "c/late"
    threaded.mkdir()
    (threaded / "cgroup.type").write_text("threaded")
    tasks = {int(each.name) for each in Path(f"/proc/{child.pid}/task").iterdir()}
    others = sorted(tasks - {child.pid})
    for each in others[:2]:
        (threaded / "cgroup.threads").write_text(str(each))
    invalid.mkdir()
    assert (invalid / "cgroup.type").read_text() == "domain invalid\n"
    # THEN its tasks are known, AND all of it dies
    try:
        assert has_process(site.path, 2)
        assert tasks_of(site.path) == tasks
        report = kill(site)
        assert (report.left_tasks, child.wait(patience(5))) == (0, -9)
    finally:
        child.kill()
        child.wait()
        for each in (threaded, invalid):  # whose cgroup.procs cannot be read
            each.rmdir()


def test_a_task_that_forks_away_from_its_killer_dies(site: Site) -> None:
    for _ in range(5):
        site.spawn(RUNNER)
    wait_until(lambda: len(site.pids()) >= 5)
    report = kill(site)
    assert report.left_tasks == 0
    assert site.pids() == []
    # One more look: nothing was in the middle of a fork.
    time.sleep(0.1)
    assert site.pids() == []


@pytest.mark.skipif("v1-bare" not in HERE, reason=f"{OTHER_MACHINE}it has no cgroup v1")
@pytest.mark.parametrize("site", ["v1-bare"], indirect=True)
def test_what_came_after_the_look_dies_in_another_round(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where nothing can be frozen: it is there once the pids have been read, as what a task forks before its signal.
    children = [site.spawn("import time; time.sleep(30)")]
    wait_until(lambda: len(site.pids()) == 1)
    real = os.pidfd_open

    def opened(pid: int) -> int:
        if len(children) == 1:
            children.append(site.spawn("import time; time.sleep(30)"))
        return real(pid)

    monkeypatch.setattr(os, "pidfd_open", opened)
    report = kill(site)
    assert (report.killed_tasks, report.left_tasks, report.rounds) == (2, 0, 2)
    assert [child.wait(patience(5)) for child in children] == [-9, -9]


def test_more_processes_than_one_batch_of_descriptors(site: Site) -> None:
    site.spawn(FORKER.replace("0.02", "0").replace("200", "300"))
    wait_until(lambda: len(site.pids()) == 301)
    before = len(list(Path("/proc/self/fd").iterdir()))
    report = kill(site)
    assert report.killed_tasks == 301
    assert site.pids() == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("site", [kind for kind in HERE if kind != "v1-bare"], indirect=True)
def test_a_paused_container_dies(site: Site) -> None:
    child = site.spawn("import time; time.sleep(30)", below="paused")
    if site.version == 2:
        (site.path / "paused/cgroup.freeze").write_text("1")
    else:
        assert site.freezer is not None
        state = site.freezer / "paused/freezer.state"
        state.write_text("FROZEN")
        wait_until(lambda: state.read_text().strip() == "FROZEN")
    assert kill(site).killed_tasks == 1
    assert child.wait(patience(5)) == -9


def frozen(site: Site, below: str = "") -> Path:
    """Freeze a level as an agent that was killed leaves it; return its directory."""
    path = (site.freezer or site.path) / below
    state, word = ("freezer.state", "FROZEN") if site.version == 1 else ("cgroup.freeze", "1")
    (path / state).write_text(word)
    return path


def unfinished(site: Site) -> UnfinishedKill:
    return UnfinishedKill("u-1", "be", "spark-1", time.monotonic_ns(), site.target())


@pytest.mark.parametrize("site", [kind for kind in HERE if kind != "v1-bare"], indirect=True)
def test_a_kill_that_was_left_in_the_middle_is_finished_and_no_pod_stays_frozen(site: Site) -> None:
    child = site.spawn("import time; time.sleep(30)", below="a")
    assert finish_kill(unfinished(site)) is None  # it runs: whether it was meant to is not known
    path = frozen(site)
    assert frozen_by(unfinished(site)) == path
    outcome = finish_kill(unfinished(site))
    assert outcome is not None
    assert (outcome.result, outcome.uid, outcome.killed_tasks) == (Result.DONE, "u-1", 1)
    assert child.wait(patience(5)) == -9
    assert frozen_by(unfinished(site)) is None


@pytest.mark.parametrize("site", [kind for kind in HERE if kind != "v1-bare"], indirect=True)
def test_a_container_that_another_process_paused_is_no_kill_that_was_left(site: Site) -> None:
    child = site.spawn("import time; time.sleep(30)", below="a")
    frozen(site, "a")
    assert finish_kill(unfinished(site)) is None
    assert child.poll() is None


@pytest.mark.parametrize("site", [kind for kind in HERE if kind != "v1-bare"], indirect=True)
def test_a_kill_that_was_left_and_is_refused_now_thaws(site: Site) -> None:
    child = site.spawn("import time; time.sleep(30)")
    frozen(site)
    another = msgspec.structs.replace(site.target(), cgroup_id=site.target().cgroup_id + 1)
    outcome = finish_kill(msgspec.structs.replace(unfinished(site), target=another))
    assert outcome is not None and outcome.result is Result.GONE
    assert frozen_by(unfinished(site)) is None
    assert child.poll() is None


def test_memory_comes_back(site: Site) -> None:
    child = site.spawn(HOG, "128")
    assert child.stdout is not None and child.stdout.readline() == "full\n"
    report = kill(site)
    assert report.killed_tasks == 1
    usage = site.path / ("memory.usage_in_bytes" if site.version == 1 else "memory.current")
    if usage.exists():
        wait_until(lambda: int(usage.read_text()) < 32 << 20)


def test_an_empty_cgroup_needs_nothing(site: Site) -> None:
    report = kill(site)
    assert (report.killed_tasks, report.left_tasks) == (0, 0)


def test_a_reused_path_is_refused(site: Site) -> None:
    old = site.target()
    site.path.rmdir()
    site.path.mkdir()
    child = site.spawn("import time; time.sleep(30)")
    assert site.path.stat().st_ino != old.cgroup_id
    with pytest.raises(CgroupGone):
        Kill.begin(old)
    assert child.poll() is None


def test_a_removed_cgroup_is_gone(site: Site) -> None:
    old = site.target()
    site.path.rmdir()
    with pytest.raises(CgroupGone):
        Kill.begin(old)


def test_a_cgroup_that_vanishes_after_it_was_opened_is_empty(site: Site) -> None:
    with Kill.begin(site.target()) as running:
        site.path.rmdir()
        report = running.finish(deadline_ns=time.monotonic_ns() + NS_PER_S)
    assert report.left_tasks == 0 and report.empty_ns is not None


# The caller of kill_cgroup is a process of its own here: the one that must not kill itself.
SELF_KILL = """
import sys, time
from pathlib import Path
from koordebpf.errors import ActuationError
from koordebpf.kernel.cgroup.kill import KillTarget, kill_cgroup
path = Path(sys.argv[1])
try:
    kill_cgroup(KillTarget(path, path.stat().st_ino, int(sys.argv[2])), deadline_ns=time.monotonic_ns() + 10**9)
except ActuationError as error:
    print("refused:", error, flush=True)
"""


def test_the_agents_own_cgroup_is_refused_and_its_neighbours_live(site: Site) -> None:
    neighbour = site.spawn("import time; time.sleep(30)")
    agent = site.spawn(SELF_KILL, str(site.path), str(site.version))
    out, _ = agent.communicate(timeout=patience(20))
    assert out.startswith("refused:") and "this agent" in out
    assert agent.returncode == 0
    assert neighbour.poll() is None


def test_what_does_not_die_in_time_is_reported(site: Site) -> None:
    # A vfork parent sleeps uninterruptibly, though killably; nothing we may make here resists SIGKILL. A deadline that
    # has passed before the first look stands for it.
    site.spawn(HOG, "64")
    wait_until(lambda: len(site.pids()) == 1)
    report = kill_cgroup(site.target(), deadline_ns=0, release_early=False)
    assert report.left_tasks + report.killed_tasks == 1
    wait_until(lambda: site.pids() == [])


def _victim(site: Site) -> Victim:
    candidate = Candidate(
        rank=1, uid="u-1", namespace="be", name="spark-1", cgroup_id=site.target().cgroup_id, priority=5000,
        holdings=(Holding(MEMORY, 1, 1),), koordinator_credit_bytes=1,
    )  # fmt: skip
    return Victim(candidate=candidate, reason="evicted", message="trigger by koordlet feature X, kill pod: spark-1")


def test_the_executor_signals_now_and_reports_when_empty(site: Site) -> None:
    child = site.spawn("import time; time.sleep(30)")
    woken: Queue[None] = Queue()
    outcomes = OutcomeQueue(lambda: woken.put(None))
    executor = CgroupExecutor(lambda *_: site.target(), outcomes, enforce=True)
    try:
        first = executor.submit(_victim(site), decided_ns=time.monotonic_ns())
        assert first.result is Result.SENT and first.sent_ns is not None
        woken.get(timeout=patience(10))
        (final,) = outcomes.drain()
        assert (final.result, final.killed_tasks) == (Result.DONE, 1)
        assert child.wait(patience(5)) == -9
        again = executor.submit(_victim(site), decided_ns=time.monotonic_ns())
        assert again.result is Result.SENT  # an empty cgroup that still stands
    finally:
        executor.close()


def test_a_reaper_outlives_whatever_ends_a_kill(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.spawn("import time; time.sleep(30)")
    woken: Queue[None] = Queue()
    outcomes = OutcomeQueue(lambda: woken.put(None))
    executor = CgroupExecutor(lambda *_: site.target(), outcomes, enforce=True)

    def fail(*_: object, **__: object) -> KillReport:
        raise MemoryError

    try:
        with monkeypatch.context() as patch:
            patch.setattr(Kill, "finish", fail)
            for _ in range(2):  # as many as there are reapers
                executor.submit(_victim(site), decided_ns=time.monotonic_ns())
                woken.get(timeout=patience(10))
                (failed,) = outcomes.drain()
                assert (failed.result, failed.detail) == (Result.FAILED, "MemoryError: ")
        wait_until(lambda: site.pids() == [])  # its signal reached them, and no task is frozen
        executor.submit(_victim(site), decided_ns=time.monotonic_ns())
        woken.get(timeout=patience(10))
        assert [each.result for each in outcomes.drain()] == [Result.DONE]
    finally:
        executor.close()


def test_a_kill_continues_where_no_thread_can_start(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    child = site.spawn("import time; time.sleep(30)")
    monkeypatch.setattr(threading.Timer, "start", start)
    assert kill(site).killed_tasks == 1
    assert child.wait(patience(5)) == -9


def test_a_kill_without_descriptors_leaves_none_open_and_no_task_frozen(site: Site) -> None:
    site.spawn(FORKER.replace("0.02", "0").replace("200", "12"))
    wait_until(lambda: len(site.pids()) == 13)
    open_fds = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [fd for fd in range(max(open_fds) + 10) if fd not in open_fds]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[8], hard))
    try:
        with pytest.raises((ActuationError, OSError)):
            kill(site)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(list(Path("/proc/self/fd").iterdir())) == len(open_fds)
    assert site.version == 2 or frozen_by(unfinished(site)) is None
    assert kill(site).killed_tasks == 13


def test_the_executor_does_not_kill_in_a_dry_run(site: Site) -> None:
    child = site.spawn("import time; time.sleep(30)")
    executor = CgroupExecutor(lambda *_: site.target(), OutcomeQueue(lambda: None))
    outcome: Outcome = executor.submit(_victim(site), decided_ns=1)
    assert outcome.result is Result.DRY_RUN
    assert child.poll() is None
    executor.close()


def test_the_executor_says_gone_when_the_path_is_another_cgroup(site: Site) -> None:
    victim = _victim(site)
    old = site.target()
    site.path.rmdir()
    site.path.mkdir()
    child = site.spawn("import time; time.sleep(30)")
    executor = CgroupExecutor(lambda *_: old, OutcomeQueue(lambda: None), enforce=True)
    assert executor.submit(victim, decided_ns=1).result is Result.GONE
    assert child.poll() is None
    executor.close()


@pytest.mark.parametrize("form", ["pod{}", "kubepods-besteffort-pod{}.slice"])
def test_a_directory_that_bears_another_pods_uid_is_left_alone(site: Site, form: str) -> None:
    uid, other = "3f6f1c2e-8a0b-4e6e-9d3f-0123456789ab", "3f6f1c2e-8a0b-4e6e-9d3f-0123456789ac"
    name = form.format(uid if form == "pod{}" else uid.replace("-", "_"))
    child = site.spawn("import time; time.sleep(30)", below=name)
    path = site.path / name
    freezer = site.freezer / name if site.freezer else None
    target = KillTarget(path, path.stat().st_ino, 1 if site.version == 1 else 2, freezer, (other, "anything"))
    victim = _victim(site)
    executor = CgroupExecutor(lambda *_: target, OutcomeQueue(lambda: None), enforce=True)
    try:
        aimed = msgspec.structs.replace(victim.candidate, cgroup_id=target.cgroup_id)
        outcome = executor.submit(msgspec.structs.replace(victim, candidate=aimed), decided_ns=1)
        assert outcome.result is Result.FAILED and "is not the cgroup of pod" in outcome.detail
        assert child.poll() is None
        report = kill_cgroup(
            msgspec.structs.replace(target, pod_names=(other, uid)), deadline_ns=time.monotonic_ns() + 5 * NS_PER_S
        )
        assert (report.killed_tasks, child.wait(patience(5))) == (1, -9)
    finally:
        executor.close()
        for base in (path, freezer):
            if base is not None:
                base.rmdir()


def test_init_is_never_signalled() -> None:
    from koordebpf.kernel.cgroup.kill import _pidfd_open

    assert _pidfd_open(1) is None
    assert _pidfd_open(0) is None
    assert _pidfd_open(os.getpid()) is None
