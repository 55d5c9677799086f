"""A load that switches and does nothing else; and work that begins at one moment."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.support.loads.workloads import BUILD

_WORKER = """
import sys, time
for line in sys.stdin:
    end = time.monotonic() + float(line)
    while time.monotonic() < end:
        pass
"""


class PingPong(msgspec.Struct, frozen=True):
    """Messages between pairs of processes, one pair for each CPU that was named: each is a switch."""

    messages: int
    cpu_ns: int
    elapsed_ns: int

    @property
    def cpu_ns_per_message(self) -> float:
        return self.cpu_ns / self.messages


def ping_pong(procs_file: Path, cpus: Sequence[int], ms: int, *, per_ms: int = 0) -> PingPong:
    """Let a pair on each CPU run for `ms`, with `per_ms` messages in each; 0: as many as it can."""
    start_ns = time.monotonic_ns()
    pairs = [
        subprocess.Popen(
            [BUILD / "pingpong", *map(str, (procs_file, cpu, ms, per_ms))], stdout=subprocess.PIPE, text=True
        )
        for cpu in cpus
    ]
    messages = cpu_ns = 0
    for pair in pairs:
        out, _ = pair.communicate(timeout=60)
        if pair.returncode:
            raise RuntimeError(f"pingpong ended with {pair.returncode}")
        said = {word: int(number) for word, number in map(str.split, out.splitlines())}
        messages, cpu_ns = messages + said["messages"], cpu_ns + said["cpu_ns"]
    return PingPong(messages, cpu_ns, time.monotonic_ns() - start_ns)


class Worker:
    """A process that sleeps until a signal makes it use all the CPU it gets."""

    def __init__(self) -> None:
        command = [sys.executable, "-S", "-c", _WORKER]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def work(self, seconds: float) -> int:
        """Begin; return when (CLOCK_MONOTONIC ns)."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return time.monotonic_ns()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
