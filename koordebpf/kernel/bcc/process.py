"""The child that builds programs with bcc: started, asked twice, ended within a time, never left behind.

It passes values and open files over a Unix socket (SCM_RIGHTS). The receiver owns the files: they stay open when the
sender exits.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from koordebpf.errors import SupportError

_MAX_FDS = 253  # SCM_MAX_FD, include/net/scm.h
_MAX_BYTES = 1 << 20
_FD_BYTES = array.array("i").itemsize
# Why 900 s: it takes 2.5 s, emulated 30 s, emulated and with a tenth of a CPU minutes. Only what hangs
# shall meet it.
TIME_LIMIT_S = 900.0
_FEATURE = "BPF programs by bcc"
_LAST_LINES = 4
_LAST_BYTES = 2000
_PACKAGES = Path(__file__).parents[3]


def channel() -> tuple[socket.socket, socket.socket]:
    """Return the two ends; each message arrives whole, and an end that is closed reads as EOFError."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(end: socket.socket, value: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send a value that JSON can hold, and then the files."""
    end.send(json.dumps({"value": value, "fds": len(fds)}).encode())
    for at in range(0, len(fds), _MAX_FDS):
        batch = array.array("i", fds[at : at + _MAX_FDS])
        end.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, batch)])


def receive(end: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return what the other end sent; the files are closed on exec.

    Raises:  EOFError: the other end is closed, or closed half-way. TimeoutError: as the socket's timeout says. What had
             arrived is closed then.
    """
    head = end.recv(_MAX_BYTES)
    if not head:
        raise EOFError("nothing was sent")
    message = json.loads(head)
    fds: list[int] = []
    try:
        while len(fds) < message["fds"]:
            space = socket.CMSG_SPACE(_MAX_FDS * _FD_BYTES)
            data, ancillary, flags, _ = end.recvmsg(1, space, socket.MSG_CMSG_CLOEXEC)
            arrived = array.array("i")
            for _, _, payload in ancillary:
                arrived.frombytes(payload[: len(payload) // _FD_BYTES * _FD_BYTES])
            fds.extend(arrived)
            if not data or not arrived or flags & socket.MSG_CTRUNC:
                raise EOFError(f"{len(fds)} of {message['fds']} files arrived")
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return message["value"], fds


class Builder:
    """A running `koordebpf.kernel.bcc.child`. Leaving the `with` block ends it, whatever it was doing.

    Raises:  SupportError, by every call: the child refused, died or was too slow; its last words are in the reason.
    """

    def __init__(self, sources: Path, flags: Sequence[str] = (), time_limit_s: float = TIME_LIMIT_S) -> None:
        self._time_limit_s = time_limit_s
        self._deadline_s = time.monotonic() + time_limit_s
        self._end, theirs = channel()
        # What it prints: a pipe would fill up, and /tmp may be read-only.
        self._words_fd = os.memfd_create("bcc stderr", os.MFD_CLOEXEC)
        path = os.pathsep.join(filter(None, (str(_PACKAGES), os.environ.get("PYTHONPATH"))))
        # -P: nothing is imported from where the agent was started.
        command = [sys.executable, "-P", "-m", "koordebpf.kernel.bcc.child", str(theirs.fileno()), str(sources), *flags]
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._words_fd,
                stderr=self._words_fd,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        except BaseException:
            self._end.close()
            os.close(self._words_fd)
            raise
        finally:
            theirs.close()

    def build(self) -> tuple[dict[str, Any], list[int]]:
        """Return layouts and maps of the compiled programs, and the maps' fds, which the caller owns."""
        return self._receive()

    def attach(self) -> tuple[dict[str, Any], list[int]]:
        """Return which programs are attached now, and fds of the programs and of what keeps them so; the caller's."""
        try:
            send(self._end, {"attach": True})
        except OSError:
            raise self._failed() from None
        return self._receive()

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        self._end.settimeout(max(0.001, self._deadline_s - time.monotonic()))
        try:
            answer, fds = receive(self._end)
        except TimeoutError:
            raise SupportError(
                _FEATURE,
                f"not built after {self._time_limit_s:g} s",
                "Give the agent more CPU, or use a kernel with BTF.",
            ) from None
        except (EOFError, OSError, json.JSONDecodeError):
            raise self._failed() from None
        if "refused" in answer:
            feature, reason, remedy = answer["refused"]
            raise SupportError(feature, reason + self._last_words(), remedy)
        return answer, fds

    def _failed(self) -> SupportError:
        self._stop()
        code = self._child.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return SupportError(_FEATURE, f"the process that builds them {how}{self._last_words()}", "See its last words.")

    def _last_words(self) -> str:
        size = os.fstat(self._words_fd).st_size
        text = os.pread(self._words_fd, _LAST_BYTES, max(0, size - _LAST_BYTES)).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return "".join(f"; {line}" for line in lines[-_LAST_LINES:])

    def _stop(self) -> None:
        # It has finished when it has sent what was asked; a grandchild (bcc runs tar and modprobe) is in its session.
        try:
            self._child.wait(timeout=1 if self._child.poll() is None else 0)
        except subprocess.TimeoutExpired:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.close()
        self._stop()
        os.close(self._words_fd)
