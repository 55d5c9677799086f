"""The demo's child processes: each ends with the demo, however that ends, and talks in lines."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import koordebpf
from koordebpf.kernel.io.closing import Closing

PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h

_libc = ctypes.CDLL(None, use_errno=True)


class Lines:
    """Complete lines out of a pipe, without waiting."""

    def __init__(self, pipe: IO[bytes]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._pipe = pipe
        self._rest = b""
        self.is_open = True

    def fileno(self) -> int:
        """Return the pipe's descriptor, to wait on."""
        return self._pipe.fileno()

    def read(self) -> list[bytes]:
        """Return the lines that came since the last call; at the end also what has no newline."""
        parts = [self._rest]
        while self.is_open:
            try:
                part = os.read(self._pipe.fileno(), 1 << 16)
            except BlockingIOError:
                break
            parts.append(part)
            self.is_open = bool(part)
        *lines, self._rest = b"".join(parts).split(b"\n")
        if not self.is_open and self._rest:
            lines, self._rest = [*lines, self._rest], b""
        return lines


class Child(Closing):
    """A Python module of this package, run as a process of its own. `close` ends it."""

    def __init__(self, module: str, *arguments: str, end_signal: signal.Signals) -> None:
        """Start it; `end_signal` is what it gets when the demo dies first."""
        # The child finds the package where this process has it; settings in the environment are the user's, not ours.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KOORDEBPF_")}
        environment["PYTHONPATH"] = str(Path(koordebpf.__file__).parents[1])
        self._popen = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # the terminal's Ctrl-C is the demo's to handle
            preexec_fn=_dies_with_parent(end_signal),  # noqa: PLW1509 - this process has one thread
        )
        assert self._popen.stdout and self._popen.stderr  # both are pipes
        self.out = Lines(self._popen.stdout)
        self.err = Lines(self._popen.stderr)

    @property
    def exit_code(self) -> int | None:
        """Return how it ended, negative for a signal; None while it runs."""
        return self._popen.poll()

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._popen.pid

    def resume(self) -> None:
        """Let it run again after a SIGSTOP."""
        self._popen.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ask it to end."""
        self._popen.terminate()

    def wait(self, seconds: float) -> int | None:
        """Return how it ended; None where it has not by then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(max(seconds, 0))
        return None

    def close(self) -> None:
        """End it, with SIGKILL where SIGTERM does not, and close its pipes."""
        self.stop()
        if self.wait(10) is None:
            self._popen.kill()
            self._popen.wait()
        for pipe in (self._popen.stdout, self._popen.stderr):
            if pipe:
                pipe.close()


def _dies_with_parent(number: signal.Signals) -> Callable[[], None]:
    parent = os.getpid()

    def ask() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it died before
            os._exit(1)

    return ask
