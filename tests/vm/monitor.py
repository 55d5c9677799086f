"""QEMU's monitor of a guest, by two pipes: a guest that hangs is made to say where."""

from __future__ import annotations

import os
import time
from pathlib import Path

# The guest panics when it gets an NMI and prints the stacks of all tasks and CPUs (boot options in machine.py); an
# emulated serial line takes 10 KiB a second.
_ASK = "info status\ninfo registers -a\nnmi\n"  # it pauses a guest whose disk finds the host's full
_QUIET_S = 5
_AT_MOST_S = 90


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
