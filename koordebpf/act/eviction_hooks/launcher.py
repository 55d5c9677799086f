"""The process that starts commands for the agent: nice level, oom_score_adj and orphans are its own, not the agent's.

It is run as a file by a bare interpreter, and imports little of the standard library: it is small, and has no thread.
Each command has a supervisor of its own, a fork of this process, which ends all that the command has started.

A message is the time limit in seconds and the command's words, with NULs between them, and two descriptors: what the
command reads, and where the answer is sent: an outcome, a sentence and what the command wrote, with NULs between them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time

MOST_RUNNING = 16  # Why: two for each hook that may be set; more are left where processes cannot be killed
KEPT_BYTES = 4096  # of what a command writes
_READ_BYTES = 1 << 20  # Why: a command that writes more is sent SIGPIPE, and takes no more of the CPUs
_MESSAGE_BYTES = 64 << 10
_NICE = 10
_GRACE_S = 0.5  # between SIGTERM and SIGKILL
_DYING_S = 1.0
_SWEEP_S = 2.0
_SWEEP_STEP_S = 0.01
_PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
_OOM_SCORE_ADJ = 1000  # Why: what a hook takes counts to the agent's own memory limit, and it is to be killed first


def serve(control: socket.socket) -> None:
    """Start a supervisor for each message, until the other end is closed; supervisors end by themselves."""
    running: set[int] = set()

    def reap(*_: object) -> None:
        while running:
            try:
                pid, _status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            running.discard(pid)

    signal.signal(signal.SIGCHLD, reap)
    while True:
        message, fds, _flags, _address = socket.recv_fds(control, _MESSAGE_BYTES, 2)
        for fd in fds:
            os.set_inheritable(fd, False)  # Python 3.11 passes no flags on to recvmsg(2)
        if not message:
            return
        if len(fds) == 2:
            given, answer = fds[0], socket.socket(fileno=fds[1])
            with answer:
                if len(running) >= MOST_RUNNING:
                    _answer(answer, "failed", f"{len(running)} commands before it have not ended", b"")
                else:
                    _fork(running, control, message, given, answer)
        for fd in fds[:1] if len(fds) == 2 else fds:
            os.close(fd)


# The signal waits until the child is among those that run.
def _fork(running: set[int], control: socket.socket, message: bytes, given: int, answer: socket.socket) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        pid = os.fork()
        if pid == 0:
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                limit_s, *command = message.split(b"\0")
                supervise(command, float(limit_s), given, answer)
            finally:
                os._exit(0)
        running.add(pid)
    except OSError as error:
        _answer(answer, "failed", f"cannot be started: {error.strerror}", b"")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def supervise(command: list[bytes], limit_s: float, given: int, answer: socket.socket) -> None:
    """Run one command, answer, and end every process that it has left behind."""
    _adopt_orphans()
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.posix_spawn(
            command[0],
            command,
            _ENVIRONMENT,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, to) for fd, to in ((given, 0), (writing, 1), (writing, 2))],
            setsid=True,
            setsigmask=[],
            setsigdef=[each for each in signal.valid_signals() if each not in (signal.SIGKILL, signal.SIGSTOP)],
        )
    except OSError as error:
        _answer(answer, "failed", f"cannot be started: {error.strerror}", b"")
        return
    os.close(writing)
    child = _Child(os.pidfd_open(pid), reading)
    is_late = not child.has_ended(limit_s)
    if is_late:
        _signal_group(pid, signal.SIGTERM)
        child.has_ended(_GRACE_S)
    # It is not waited for yet, so that its number is still its own.
    _signal_group(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1] if child.has_ended(_DYING_S) else None
    if is_late:
        _answer(answer, "timed_out", f"not ended after {limit_s:g} s", child.wrote)
    elif status is None:
        _answer(answer, "failed", "cannot be killed", child.wrote)
    else:
        _answer(answer, *_said_of(os.waitstatus_to_exitcode(status)), child.wrote)
    _sweep()


class _Child:
    # What it writes is read meanwhile, and the beginning kept.
    def __init__(self, pidfd: int, reading: int) -> None:
        self._pidfd = pidfd
        self._reading = reading
        self._left = _READ_BYTES
        self.wrote = bytearray()
        self._poll = select.poll()
        self._poll.register(pidfd, select.POLLIN)
        self._poll.register(reading, select.POLLIN)

    def has_ended(self, within_s: float) -> bool:
        until_s = time.monotonic() + within_s
        while True:
            events = dict(self._poll.poll(max(0, int((until_s - time.monotonic()) * 1000 + 0.999))))
            if self._reading in events:
                self._read()
            if self._pidfd in events:
                return True
            if time.monotonic() >= until_s:
                return False

    def _read(self) -> None:
        read = os.read(self._reading, _MESSAGE_BYTES)
        self.wrote += read[: KEPT_BYTES - len(self.wrote)]
        self._left -= len(read)
        if not read or self._left <= 0:
            self._poll.unregister(self._reading)
            os.close(self._reading)
            self._reading = -1


def _said_of(code: int) -> tuple[str, str]:
    if code == 0:
        return "done", ""
    return "failed", f"ended with status {code}" if code > 0 else f"was killed by signal {-code}"


def _answer(answer: socket.socket, outcome: str, sentence: str, wrote: bytes | bytearray) -> None:
    with contextlib.suppress(OSError):  # the agent does not wait any more
        answer.send(b"\0".join((outcome.encode(), sentence.encode(), bytes(wrote))), socket.MSG_DONTWAIT)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


# Processes whose parents have ended become children of this one, in whatever session they are.
def _adopt_orphans() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# Each pass kills those whose parents the pass before has killed.
def _sweep() -> None:
    until_s = time.monotonic() + _SWEEP_S
    while time.monotonic() < until_s:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_SWEEP_STEP_S)


def _children() -> list[int]:
    own = os.getpid()
    with contextlib.suppress(OSError), open(f"/proc/{own}/task/{own}/children", "rb") as file:  # noqa: PTH123
        return [int(pid) for pid in file.read().split()]
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                if int(file.read().rpartition(b")")[2].split()[1]) == own:
                    found.append(int(name))
    return found


def main() -> None:
    """Serve the socket whose descriptor is the one argument."""
    fd = int(sys.argv[1])
    os.set_inheritable(fd, False)
    os.chdir("/")
    # The agent's end is the end of the socket: signals to its session or its unit are not for this process.
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as file:  # noqa: PTH123
        file.write(str(_OOM_SCORE_ADJ).encode())
    with socket.socket(fileno=fd) as control:
        serve(control)


if __name__ == "__main__":
    main()
