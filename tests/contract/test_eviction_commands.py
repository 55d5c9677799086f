"""Commands that are called around an eviction, as real processes: what they get, and what they cannot do."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordebpf.act.eviction_hooks import launcher as launcher_file
from koordebpf.act.eviction_hooks.command import Launcher, command_problem
from koordebpf.act.eviction_hooks.ran import Ran
from koordebpf.act.eviction_hooks.runner import open_hooks
from koordebpf.act.eviction_hooks.settings import CommandHook, EvictionHookSettings
from tests.conftest import OTHER_MACHINE
from tests.support.hung import CannotHang, hung_filesystem
from tests.support.patience import patience

ROOT = Path(__file__).parents[2]
PAYLOAD = b'{"schema":"koordebpf.eviction-hook/v1"}\n'


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


def script(folder: Path, text: str) -> str:
    path = folder / "hook"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def run(launcher: Launcher, *command: str, timeout_s: float = 20) -> Ran:
    return launcher.run(command, PAYLOAD, timeout_s)


def is_running(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def wait_for(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + patience(10)
    while not condition():
        assert time.monotonic() < until_s, what
        time.sleep(0.01)


def left_behind(mark: str) -> list[int]:
    """Return processes with this word among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (path / "cmdline").read_bytes().split(b"\0") and is_running(int(path.name)):
                found.append(int(path.name))
    return found


class TestAnEnd:
    def test_what_it_reads_is_the_payload_and_what_it_writes_comes_back(self, launcher: Launcher) -> None:
        assert run(launcher, "/bin/cat") == Ran("done", "", PAYLOAD.decode())

    def test_a_status_is_a_failure_with_what_it_wrote(self, launcher: Launcher, tmp_path: Path) -> None:
        command = script(tmp_path, "echo one; echo two >&2; exit 3")
        assert run(launcher, command) == Ran("failed", "ended with status 3", "one\ntwo\n")

    def test_a_signal_is_a_failure(self, launcher: Launcher, tmp_path: Path) -> None:
        assert run(launcher, script(tmp_path, "kill -9 $$")) == Ran("failed", "was killed by signal 9")

    @pytest.mark.parametrize(("name", "said"), [("absent", "No such file"), ("plain", "Permission denied")])
    def test_a_command_that_cannot_be_started(self, launcher: Launcher, tmp_path: Path, name: str, said: str) -> None:
        (tmp_path / "plain").touch()
        ran = run(launcher, str(tmp_path / name))
        assert ran.ending == "failed"
        assert ran.detail.startswith(f"cannot be started: {said}")

    def test_no_shell_reads_its_words(self, launcher: Launcher) -> None:
        assert run(launcher, "/bin/echo", "$(id)", "a b", "; true").output == "$(id) a b ; true\n"


class TestItsWorld:
    def test_it_has_no_descriptor_of_the_agents(self, launcher: Launcher, tmp_path: Path) -> None:
        with (tmp_path / "secret").open("w") as file:
            os.set_inheritable(file.fileno(), True)
            found = run(launcher, script(tmp_path, "for fd in /proc/$$/fd/*; do readlink $fd; done")).output
        # THEN it has what it reads and writes, and the shell its own script
        links = sorted(each.partition(":")[0] for each in found.splitlines())
        assert links == sorted(["/memfd", "pipe", "pipe", str(tmp_path / "hook")])

    def test_its_environment_is_clean(self, launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KUBECONFIG", "/secret")
        monkeypatch.setenv("LD_PRELOAD", "/evil.so")
        # THEN it has what the launcher was started with: nothing of the agent's
        other = Launcher()
        try:
            names = {line.partition("=")[0] for line in run(other, "/usr/bin/env").output.splitlines()}
        finally:
            other.close()
        assert names == {"PATH", "LANG"}

    def test_others_come_first_and_it_dies_first(self, launcher: Launcher, tmp_path: Path) -> None:
        command = script(tmp_path, "nice; cat /proc/self/oom_score_adj; pwd; ps -o sid= -p $$; echo $$")
        nice, score, folder, session, pid = run(launcher, command).output.split()
        assert (int(nice), int(score), folder) == (10, 1000, "/")
        assert session == pid

    def test_signals_are_as_in_a_fresh_process(self, launcher: Launcher) -> None:
        text = run(launcher, "/bin/cat", "/proc/self/status").output
        masks = {name: int(value, 16) for name, value in re.findall(r"^(Sig(?:Blk|Ign)):\s+(\w+)$", text, re.MULTILINE)}
        of_libc = 0b11 << 31  # SIGCANCEL and SIGSETXID are none that a program sets
        assert {name: mask & ~of_libc for name, mask in masks.items()} == {"SigBlk": 0, "SigIgn": 0}


class TestItsLimits:
    def test_one_that_hangs_is_ended(self, launcher: Launcher, tmp_path: Path) -> None:
        command = script(tmp_path, "trap 'echo ending; exit 0' TERM; echo started; while :; do sleep 0.05; done")
        since_s = time.monotonic()
        ran = run(launcher, command, timeout_s=0.3)
        assert (ran.ending, ran.detail) == ("timed_out", "not ended after 0.3 s")
        lines = ran.output.splitlines()
        assert (lines[0], lines[-1]) == ("started", "ending")
        assert time.monotonic() - since_s < patience(3)

    def test_one_that_ignores_sigterm_is_killed(self, launcher: Launcher, tmp_path: Path) -> None:
        command = script(tmp_path, "trap '' TERM; echo $$; while :; do sleep 0.05; done")
        ran = run(launcher, command, timeout_s=0.2)
        assert ran.ending == "timed_out"
        wait_for(lambda: not is_running(int(ran.output)), "it runs still")

    def test_one_that_stops_itself_is_killed(self, launcher: Launcher, tmp_path: Path) -> None:
        ran = run(launcher, script(tmp_path, "echo $$; kill -STOP $$"), timeout_s=0.2)
        assert ran.ending == "timed_out"
        wait_for(lambda: not is_running(int(ran.output)), "it is there still")

    @pytest.mark.parametrize("ending", ["exit 0", "sleep 100"], ids=["ends", "hangs"])
    def test_what_it_leaves_behind_ends_with_it(self, launcher: Launcher, tmp_path: Path, ending: str) -> None:
        mark = str(tmp_path)
        loop = f"/bin/sh -c 'while :; do sleep 0.1; done' {mark}"
        # GIVEN children in its session and in sessions of their own, the last one through a parent that has ended
        command = script(tmp_path, f"{loop} & setsid {loop} & (setsid {loop} & exit 0); {ending}")
        run(launcher, command, timeout_s=1)
        wait_for(lambda: left_behind(mark) == [], f"left behind: {left_behind(mark)}")

    def test_one_that_forks_and_forks_is_ended(self, launcher: Launcher, tmp_path: Path) -> None:
        mark = str(tmp_path / "fork")
        # GIVEN processes that each leave two more, up to a few hundred
        command = script(
            tmp_path,
            f"[ ${{1:-0}} -ge 7 ] && exec /bin/sh -c 'while :; do sleep 0.1; done' {mark}\n"
            'for _ in 1 2; do setsid "$0" $((${1:-0} + 1)) & done; sleep 100',
        )
        run(launcher, command, timeout_s=1.5)
        wait_for(lambda: left_behind(mark) == [] and left_behind(command) == [], "processes are left")
        assert run(launcher, "/bin/true").ending == "done"

    def test_one_that_writes_without_end_costs_no_memory_and_ends(self, launcher: Launcher) -> None:
        ran = run(launcher, "/usr/bin/yes")
        assert (ran.ending, ran.detail) == ("failed", "was killed by signal 13")
        assert len(ran.output) == launcher_file.KEPT_BYTES

    def test_a_payload_that_it_does_not_read_is_no_failure(self, launcher: Launcher) -> None:
        assert launcher.run(["/bin/true"], bytes(4 << 20), 20).ending == "done"

    def test_answers_that_are_no_utf8_are_text(self, launcher: Launcher, tmp_path: Path) -> None:
        assert run(launcher, script(tmp_path, r"printf '\377\0b'")).output == "�\0b"


def test_a_command_on_a_filesystem_that_hangs_keeps_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("koordebpf.act.eviction_hooks.command._SLACK_S", 0.5)
    folder = tmp_path / "hung"
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hung_filesystem(folder))
        except CannotHang as error:
            pytest.skip(f"{OTHER_MACHINE}{error}")
        since_s = time.monotonic()
        commands = (
            CommandHook(name="hangs", command=(f"{folder}/hook",), timeout_seconds=1),
            CommandHook(name="works", command=("/bin/true",)),
        )
        hooks = open_hooks(EvictionHookSettings(commands=commands))
        hooks.call("before", lambda _: PAYLOAD, dry_run=False)
        called_s = time.monotonic() - since_s
        wait_for(lambda: hooks.counts()["works", "done"] == 1, "the other hook is not called")
        since_s = time.monotonic()
        hooks.close()
        closed_s = time.monotonic() - since_s
        assert called_s < patience(0.5)
        assert closed_s < patience(1.5)
        assert "hooks have not ended: hangs" in caplog.text
    wait_for(lambda: "hook-hangs" not in {each.name for each in threading.enumerate()}, "its thread waits still")


class TestTheLauncher:
    def test_it_ends_with_the_agent(self) -> None:
        launcher = Launcher()
        pid = launcher.pid
        assert pid is not None
        run(launcher, "/bin/true")
        launcher.close()
        assert not is_running(pid)
        assert run(launcher, "/bin/true") == Ran("failed", "no command can be started: the agent ends")

    def test_it_ends_with_an_agent_that_is_killed(self) -> None:
        code = (
            "import os, signal; from koordebpf.act.eviction_hooks.command import Launcher; launcher = Launcher();"
            "launcher.run(['/bin/true'], b'', 9); print(launcher.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
        wait_for(lambda: not is_running(int(done.stdout)), "it runs still")

    def test_one_that_is_killed_fails_a_call_and_is_started_again(
        self, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pid = launcher.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not is_running(pid), "it runs still")
        ran = run(launcher, "/bin/true")
        assert (ran.ending, ran.detail.rpartition(": ")[2]) == (
            "failed", "the process that starts them has ended, and is started once in 60 s",
        )  # fmt: skip
        monkeypatch.setattr("koordebpf.act.eviction_hooks.command._AGAIN_S", 0.0)
        assert run(launcher, "/bin/true").ending == "done"
        assert launcher.pid not in (None, pid)

    def test_signals_to_its_session_do_not_end_it(self, launcher: Launcher) -> None:
        assert launcher.pid is not None
        run(launcher, "/bin/true")  # it ignores them once it runs
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(launcher.pid, number)
        assert run(launcher, "/bin/true").ending == "done"

    def test_a_call_in_progress_outlives_it(self, launcher: Launcher, tmp_path: Path) -> None:
        made = tmp_path / "made"
        hooks = open_hooks(
            EvictionHookSettings(
                commands=(CommandHook(name="a", command=(script(tmp_path, f"sleep 1; touch {made}"),)),)
            )
        )
        hooks.call("after", lambda _: PAYLOAD, dry_run=False)
        time.sleep(0.2)
        hooks.close()
        assert not made.exists()
        wait_for(made.exists, "it was ended with the agent")

    def test_more_at_once_than_it_takes_are_refused(
        self, launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # GIVEN callers that do not wait, as where what was started cannot be killed
        monkeypatch.setattr("koordebpf.act.eviction_hooks.command._SLACK_S", -59.95)
        waits = script(tmp_path, f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done")
        for _ in range(launcher_file.MOST_RUNNING):
            assert run(launcher, waits, timeout_s=60).ending == "timed_out"
        monkeypatch.undo()
        ran = run(launcher, "/bin/true")
        (tmp_path / "go").touch()
        assert (ran.ending, ran.detail) == ("failed", "16 commands before it have not ended")
        wait_for(lambda: run(launcher, "/bin/true").ending == "done", "they never ended")

    def test_it_leaves_no_zombie(self, launcher: Launcher) -> None:
        for _ in range(5):
            run(launcher, "/bin/true")
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
        if not children.exists():
            pytest.skip("this kernel does not tell the children of a process")
        wait_for(lambda: children.read_text().split() == [], "children are left")


def test_what_is_wrong_with_a_command_is_named(tmp_path: Path) -> None:
    path = Path(script(tmp_path, "exit 0"))
    assert command_problem(path) is None
    path.chmod(0o757)
    assert "can be written by every user" in str(command_problem(path))
    path.chmod(stat.S_IRUSR)
    assert "is no program" in str(command_problem(path))
    assert "is no program" in str(command_problem(tmp_path))
    assert "No such file" in str(command_problem(tmp_path / "absent"))
