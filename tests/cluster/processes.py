"""Servers as child processes that do not outlive their parent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support.patience import patience

_LAST_LINES = 15


class Ended(RuntimeError):
    """A server ended that should run; says how, and its last words."""


class ServerProcess:
    """One server, its output in a file. The kernel kills it when the thread that started it ends, however it ends."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        # A session of its own: ^C is for the tests, which then end it in order.
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=os.environ | (environment or {}),
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the server's own pid: setpriv has become it."""
        return self.process.pid

    def check(self) -> None:
        """Raise Ended if it does not run."""
        if self.process.poll() is not None:
            raise Ended(f"{self.name} ended with {self.process.returncode}:\n{self.last_words()}")

    def last_words(self) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:])

    def stop(self, by: signal.Signals = signal.SIGKILL) -> None:
        """End and reap it; twice is harmless."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(by)
        try:
            self.process.wait(patience(20))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def resident_bytes(self) -> int:
        """Return what it holds in memory."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def wait_for(
    condition: Callable[[], object], what: str, servers: Sequence[ServerProcess], timeout_s: float = 60
) -> None:
    """Wait until `condition()` is true while the servers run; say who ended, or what did not come."""
    deadline = time.monotonic() + patience(timeout_s)
    while not condition():
        for server in servers:
            server.check()
        if time.monotonic() > deadline:
            words = "\n".join(f"{server.name}:\n{server.last_words()}" for server in servers)
            raise TimeoutError(f"{what}\n{words}")
        time.sleep(0.02)
