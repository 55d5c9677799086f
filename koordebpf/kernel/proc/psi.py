"""Pressure stall information: the files, and the triggers that wake.

Works on /proc/pressure/memory and cpu, and on a v2 cgroup's memory.pressure and cpu.pressure. cgroup v1 has no pressure
files upstream.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from koordebpf.errors import CgroupGone, KernelProblem, SupportError, os_reason
from koordebpf.kernel.io.table import Rising, odd_row, report_odd, rows
from koordebpf.kernel.io.text_file import KeptFile

NODE_MEMORY_PRESSURE = Path("/proc/pressure/memory")
NODE_CPU_PRESSURE = Path("/proc/pressure/cpu")

# Before Linux 6.5 a window is at least 500 ms; since then it may be as short as one likes with CAP_SYS_RESOURCE, and
# must be a multiple of 2 s without it.
FALLBACK_WINDOWS_US = (500_000, 2_000_000)

# Why 32: the kernel runs a thread for each cgroup with such a trigger, and a node has fewer pods that must not stall.
MAX_CGROUP_TRIGGERS = 32

PsiKind = Literal["some", "full"]

_PERCENT = rb"(100\.0{1,9}|[0-9]{1,2}\.[0-9]{1,9})"  # of the time, never more than all of it
_LINE = re.compile(rb"avg10=%b avg60=%b avg300=%b total=([0-9]{1,18})" % (_PERCENT, _PERCENT, _PERCENT))
_RULE = "must have a row some avg10=… avg60=… avg300=… total=…, and full as well or not at all"
_FILE_BYTES = 1 << 10


class PressureLine(msgspec.Struct, frozen=True, gc=False):
    """Share of the last 10, 60 and 300 s that was lost, in percent, and the sum since boot in µs."""

    avg10: float
    avg60: float
    avg300: float
    total_us: int


class Pressure(msgspec.Struct, frozen=True, gc=False):
    """Both lines of a pressure file; `full` is None where the kernel has none, as for cpu before Linux 5.13."""

    some: PressureLine
    full: PressureLine | None


class PressureFile(KeptFile):
    """Reads one pressure file through a kept fd."""

    def __init__(self, path: Path = NODE_MEMORY_PRESSURE) -> None:
        """Open the file.

        Raises:  SupportError: this kernel has or does no pressure accounting. CgroupGone: the cgroup is not there.
        """
        self.path = path
        self._rising = Rising(path)
        self._fd = _open(path, os.O_RDONLY)

    def read(self) -> Pressure:
        """Return both lines as they are now.

        Raises:  CgroupGone: the cgroup was removed. SupportError: psi=0. KernelFileError: not its form.
        Cost:    4 µs.
        """
        try:
            data = os.pread(self._fd, _FILE_BYTES, 0)
        except OSError as error:
            raise _error_of(self.path, error) from None
        found = parse_pressure(data, self.path)
        self._rising.check({b"some": found.some.total_us})
        return found


def parse_pressure(data: bytes, path: Path | str) -> Pressure:
    """Return what a pressure file of these bytes says.

    Raises:  KernelFileError: it has no row `some`, or its only row `some` or `full` has another form.
    """
    found: dict[bytes, PressureLine] = {}
    odd: dict[bytes, bytes] = {}
    for row in rows(data):
        kind, _, numbers = row.partition(b" ")
        if kind not in (b"some", b"full"):
            continue
        if kind in found or (match := _LINE.fullmatch(numbers)) is None:
            odd[kind] = row
            report_odd(path, row)
        else:
            avg10, avg60, avg300, total = match.groups()
            found[kind] = PressureLine(float(avg10), float(avg60), float(avg300), int(total))
    for kind in (b"some", b"full"):
        if kind not in found and (kind in odd or kind == b"some"):
            raise odd_row(path, odd.get(kind, data), _RULE)
    return Pressure(found[b"some"], found.get(b"full"))


class PsiTrigger(KeptFile):
    """Wakes when tasks lost `stall_us` within a window, at most once a window.

    Register `fileno()` for EPOLLPRI only: the file itself is always readable, so EPOLLIN would spin. EPOLLERR says that
    the cgroup is gone. `window_us` is the window the kernel granted, `refused` why it did not grant a shorter one.

    Source:  Documentation/accounting/psi.rst; kernel/sched/psi.c psi_trigger_create.
    """

    def __init__(
        self, path: Path = NODE_MEMORY_PRESSURE, kind: PsiKind = "some", stall_us: int = 1_000, window_us: int = 50_000
    ) -> None:
        """Set the trigger with the asked window, else with the shortest of 500 ms and 2 s that is granted.

        The stall stays what was asked: in a longer window it is reached no later.

        Raises:  ValueError: the stall is not in 1 µs … window. SupportError: the kernel grants none. CgroupGone: no
                 such cgroup.
        """
        if not 0 < stall_us <= window_us:
            raise ValueError(f"stall_us {stall_us} must be in 1…window_us {window_us}")
        self.path = path
        self.kind = kind
        self.stall_us = stall_us
        refused: list[str] = []
        for window in (window_us, *(longer for longer in FALLBACK_WINDOWS_US if longer > window_us)):
            # A file for each try: one open file takes one trigger.
            fd = _open(path, os.O_RDWR | os.O_NONBLOCK)
            try:
                os.write(fd, f"{kind} {stall_us} {window}\0".encode())
            except OSError as error:
                os.close(fd)
                if error.errno != errno.EINVAL:
                    raise _error_of(path, error) from None
                refused.append(f"{window / 1000:g} ms: {error.strerror}")
                continue
            self._fd = fd
            self.window_us = window
            self.refused = tuple(refused)
            return
        raise SupportError(
            f"PSI trigger on {path}",
            f"no window was granted ({'; '.join(refused)})",
            "Give CAP_SYS_RESOURCE; without it since Linux 6.5 a window is a multiple of 2 s, and before not allowed",
        )

    def fileno(self) -> int:
        """Return the fd to wait on."""
        return self._fd


class PsiTriggers:
    """Triggers on one pressure file of many v2 cgroups, each as long as it is wanted.

    `refused` says why the last one that was refused was. It is asked for again only where the kernel lacked something
    that comes back, as fds or memory.
    """

    def __init__(
        self, max_triggers: int = MAX_CGROUP_TRIGGERS, *, file: str = "memory.pressure", stall_us: int = 1_000
    ) -> None:
        self.refused: str | None = None
        self._file = file
        self._stall_us = stall_us
        self._max_triggers = max_triggers
        self._triggers: dict[int, PsiTrigger] = {}
        self._never: set[int] = set()

    def __len__(self) -> int:
        return len(self._triggers)

    def keep_only(self, wanted: Mapping[int, Path]) -> tuple[list[int], list[int]]:
        """Have triggers on these cgroups (id → directory) and no others; return the fds that are new, and the closed.

        Beyond `max_triggers` the youngest ids go without: a cgroup that has a trigger keeps it.
        """
        closed = []
        for cgroup_id in self._triggers.keys() - wanted.keys():
            trigger = self._triggers.pop(cgroup_id)
            closed.append(trigger.fileno())
            trigger.close()
        self._never &= wanted.keys()
        new = []
        for cgroup_id in sorted(wanted.keys() - self._triggers.keys() - self._never):
            if len(self._triggers) >= self._max_triggers:
                break
            try:
                trigger = self._triggers[cgroup_id] = PsiTrigger(
                    wanted[cgroup_id] / self._file, stall_us=self._stall_us
                )
            except KernelProblem as error:
                self._never.add(cgroup_id)
                self.refused = str(error)
                continue
            except OSError as error:
                self.refused = str(error)
                continue
            new.append(trigger.fileno())
        return new, closed

    def close(self) -> None:
        """Remove every trigger."""
        self.keep_only({})


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise _error_of(path, error) from None


def _error_of(path: Path, error: OSError) -> Exception:
    feature = f"PSI ({path})"
    match error.errno:
        case errno.EOPNOTSUPP:
            return SupportError(feature, "pressure accounting is switched off", "Boot with psi=1")
        case errno.EBUSY:
            return SupportError(feature, "the open file has a trigger already", "Open the file once for each trigger")
        case errno.ENODEV:
            return CgroupGone(str(path.parent))
        case errno.ENOENT if path.parent.is_dir() or path in (NODE_MEMORY_PRESSURE, NODE_CPU_PRESSURE):
            return SupportError(
                feature,
                "there is no such file",
                "Boot with psi=1 on a kernel with CONFIG_PSI; cgroups have the file on cgroup v2 only",
            )
        case errno.ENOENT:
            return CgroupGone(str(path.parent))
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return SupportError(feature, os_reason(error), "Run as root, with the file system mounted writable")
    return error
