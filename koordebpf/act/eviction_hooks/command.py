"""Commands, started by a small process beside the agent: `launcher` has why.

The launcher is started with the agent. One that has ended is started again with the next call, at most once a minute.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from koordebpf.act.eviction_hooks.ran import Ending, Ran
from koordebpf.act.eviction_hooks.settings import CommandHook
from koordebpf.errors import os_reason

_HELPER = Path(__file__).with_name("launcher.py")
_ANSWER_BYTES = 64 << 10
_SLACK_S = 3.0  # Why: the launcher needs 0.5 s for SIGTERM, 1 s for SIGKILL and its own turn on a busy node
_AGAIN_S = 60.0  # Why: a process that is killed at once each time is to cost next to nothing
_CLOSE_S = 0.2


class Launcher:
    """The process that starts commands. Safe for threads.

    Cost:    10.6 MiB of memory, 6 MiB of them not shared.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._started_s = -_AGAIN_S
        self._is_closed = False
        with contextlib.suppress(OSError):  # each call says it
            self._start()

    @property
    def pid(self) -> int | None:
        """Its process id; None: it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def run(self, command: Sequence[str], payload: bytes, timeout_s: float) -> Ran:
        """Run a command and wait for its end; its whole session is killed after `timeout_s`."""
        given = os.memfd_create("hook", os.MFD_CLOEXEC)
        try:
            left = memoryview(payload)
            while left:
                left = left[os.write(given, left) :]
            os.lseek(given, 0, os.SEEK_SET)
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with mine:
                with theirs:
                    words = [f"{timeout_s:g}".encode(), *(word.encode() for word in command)]
                    self._send(b"\0".join(words), [given, theirs.fileno()])
                mine.settimeout(timeout_s + _SLACK_S)
                answer = mine.recv(_ANSWER_BYTES)
        except TimeoutError:
            return Ran("timed_out", "the process that starts commands has not answered")
        except OSError as error:
            return Ran("failed", f"no command can be started: {os_reason(error)}")
        finally:
            os.close(given)
        if not answer:
            return Ran("failed", "the process that starts commands was killed")
        ending, detail, wrote = answer.split(b"\0", 2)
        return Ran(cast("Ending", ending.decode()), detail.decode(), wrote.decode(errors="replace"))

    def close(self) -> None:
        """Let it end; commands that run end by themselves, within their time limits."""
        with self._lock:
            self._is_closed = True
            if self._control is not None:
                self._control.close()
            if self._process is not None:
                try:
                    self._process.wait(_CLOSE_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()

    def _send(self, message: bytes, fds: Sequence[int]) -> None:
        with self._lock:
            if self._is_closed:
                raise OSError("the agent ends")
            if self._control is not None:
                try:
                    socket.send_fds(self._control, [message], list(fds))
                except (BrokenPipeError, ConnectionError):
                    self._control.close()
                    self._control = None
                else:
                    return
            self._start()
            assert self._control is not None
            socket.send_fds(self._control, [message], list(fds))

    def _start(self) -> None:
        if time.monotonic() - self._started_s < _AGAIN_S:
            raise OSError(f"the process that starts them has ended, and is started once in {_AGAIN_S:g} s")
        self._started_s = time.monotonic()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                # -I -S: nothing of the environment or of the installation is imported.
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_HELPER), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={},
                    start_new_session=True,
                )
        except OSError:
            mine.close()
            raise
        mine.setblocking(False)
        self._control = mine


class Command:
    """One command of the settings."""

    def __init__(self, settings: CommandHook, launcher: Launcher) -> None:
        self._settings = settings
        self._launcher = launcher

    def problem(self) -> str | None:
        """Return why its program cannot be run, or should not be."""
        return command_problem(Path(self._settings.command[0]))

    def call(self, payload: bytes) -> Ran:
        """Run it with the payload on its standard input."""
        return self._launcher.run(self._settings.command, payload, self._settings.timeout_seconds)


def command_problem(path: Path) -> str | None:
    """Return why a command cannot be run, or should not be; None: nothing is wrong with it."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"{path}: {error.strerror}"
    if not stat.S_ISREG(mode) or not os.access(path, os.X_OK):
        return f"{path} is no program that can be run"
    if mode & stat.S_IWOTH:
        return f"{path} can be written by every user, and is run with the agent's rights"
    return None
