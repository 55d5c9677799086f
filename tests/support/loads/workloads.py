"""The known loads of tests/workloads as processes."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "workloads"
BUILD = SOURCES / "build"


class Hog:
    """A process that eats memory in one container's cgroup, and tells when it has passed a mark.

    Args:
        container: its cgroup's directory.
        mib: the most it will ever hold.
        before: a command that runs it, as nsenter does.
        more: further arguments of the program.
    """

    def __init__(
        self,
        container: Path,
        mib: int,
        *more: str | int | Path,
        rate_mib_s: int = 0,
        hold_s: int = 30,
        huge: bool = False,
        before: Sequence[str] = (),
    ) -> None:
        given = ["--mib", mib, "--rate-mib-s", rate_mib_s, "--hold", hold_s, "--huge", int(huge)]
        command = [*before, str(BUILD / "hog"), "--cgroup", str(container / "cgroup.procs")]
        command += [str(part) for part in [*given, *more]]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def wait_for(self, word: str) -> int:
        """Return the time at which it said `word`; lines before that are passed over."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said, _, ns = line.partition(" ")
            if said == word:
                return int(ns)
        raise RuntimeError(f"the hog ended without saying {word}")

    def story(self, timeout_s: float = 60) -> dict[str, int]:
        """Wait for its end; return the time of everything it said (CLOCK_MONOTONIC ns)."""
        try:
            out, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, _ = self.process.communicate()
        return {word: int(ns) for word, _, ns in (line.partition(" ") for line in out.splitlines())}

    def stop(self) -> None:
        """Kill and reap it; twice is harmless."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Holder:
    """A process that holds memory of one kind in one container's cgroup until it is stopped.

    Args:
        container: its cgroup's directory.
        kind: as `holder --kind` has it.
        mib: how much of it.
        more: further arguments of the program.
        waits: until it holds all of it.
    """

    def __init__(self, container: Path, kind: str, mib: int, *more: str | Path, waits: bool = True) -> None:
        command = [BUILD / "holder", "--kind", kind, "--mib", mib, "--cgroup", container / "cgroup.procs", *more]
        self.process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        if waits and not self.process.stdout.readline().startswith("ready"):
            raise RuntimeError(f"the holder of {kind} ended before it held {mib} MiB")

    def stop(self) -> None:
        """Kill and reap it; twice is harmless."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
