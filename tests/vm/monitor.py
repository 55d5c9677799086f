"""QEMU's monitor of a guest, by two pipes: a guest that hangs is made to say where."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import psutil

# The guest panics when it gets an NMI and prints the stacks of all tasks and CPUs (boot options in machine.py); an
# emulated serial line takes 10 KiB a second.
_ASK = "info status\ninfo registers -a\nnmi\n"  # it pauses a guest whose disk finds the host's full
_QUIET_S = 5
_AT_MOST_S = 90
_EMULATOR = "qemu-system-"
_GDB_S = 60


class Monitor:
    """The two pipes, which must be there before QEMU starts."""

    def __init__(self, results: Path) -> None:
        self._path = results / "monitor"
        self._console = results / "console.txt"
        for end in ("in", "out"):
            os.mkfifo(f"{self._path}.{end}")

    @property
    def options(self) -> str:
        """Return QEMU's options."""
        return f"-chardev pipe,id=monitor,path={self._path} -mon chardev=monitor,mode=readline"

    def ask_for_stacks(self) -> None:
        """Let QEMU write its CPUs' registers to `monitor.txt`, and the guest its stacks to the console."""
        answers = os.open(f"{self._path}.out", os.O_RDONLY | os.O_NONBLOCK)
        try:
            # O_RDWR: never blocks, also where QEMU is gone.
            ask = os.open(f"{self._path}.in", os.O_RDWR | os.O_NONBLOCK)
            os.write(ask, _ASK.encode())
            self._wait_for_quiet()
            os.close(ask)
            reply = _all_of(answers)  # behind the echo of what was asked
            self._path.with_suffix(".txt").write_bytes(reply[max(reply.find(b"VM status"), 0) :])
        finally:
            os.close(answers)

    def _wait_for_quiet(self) -> None:
        started_s = heard = time.monotonic()
        size = self._console.stat().st_size
        while (now := time.monotonic()) - heard < _QUIET_S and now - started_s < _AT_MOST_S:
            time.sleep(0.5)
            if (grown := self._console.stat().st_size) != size:
                size, heard = grown, time.monotonic()

    def close(self) -> None:
        """Remove the pipes."""
        for end in ("in", "out"):
            Path(f"{self._path}.{end}").unlink()


def _all_of(fd: int) -> bytes:
    parts = []
    try:
        while part := os.read(fd, 1 << 16):
            parts.append(part)
    except BlockingIOError:
        pass
    return b"".join(parts)


def write_emulator_stacks(pid: int, path: Path) -> None:
    """Write what each thread of the QEMU below a process does: its CPU time, and with gdb, where it is installed, its
    stack. A guest that takes no NMI hangs in there."""
    parts: list[str] = []
    for child in psutil.Process(pid).children(recursive=True):
        if not child.name().startswith(_EMULATOR):
            continue
        parts += [f"thread {thread.id}: {thread.user_time + thread.system_time:.1f} s" for thread in child.threads()]
        if gdb := shutil.which("gdb"):
            command = [gdb, "-p", str(child.pid), "-batch", "-ex", "thread apply all backtrace"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_GDB_S, check=False)
                parts.append(done.stdout)
            except subprocess.TimeoutExpired:
                parts.append(f"gdb took longer than {_GDB_S} s")
    path.write_text("\n".join(parts))
