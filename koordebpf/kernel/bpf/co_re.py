"""The CO-RE object with each program by the newest way that this kernel grants it, found by trying.

A tracepoint's program is tried as a BTF tracepoint's, then as a raw tracepoint's; those are older than the ring buffer
that all programs need, so there is no third way. A function's is tried by kprobe, then by fentry, whose programs can be
preempted: until it resumes the same program is passed over on its CPU, and an end is missed (seen on 7.2, which
preempts lazily; recursion_misses of struct bpf_prog_info counts them). One that is refused is left out.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal

from koordebpf.kernel.bpf import libbpf
from koordebpf.kernel.bpf.lockdown import is_of_lockdown
from koordebpf.kernel.bpf.programs import partner_of

_Way = Literal["tp_btf", "raw_tp", "fentry", "kprobe", "iter"]

# What a program's section begins with → the ways it may go, best first; the last is the section's own.
_WAYS: dict[str, tuple[_Way, ...]] = {
    "raw_tp": ("tp_btf", "raw_tp"),
    "kprobe": ("kprobe", "fentry"),
    "iter": ("iter",),
}
_TYPES: dict[_Way, tuple[int, int]] = {
    "tp_btf": (libbpf.PROG_TYPE_TRACING, libbpf.TRACE_RAW_TP),
    "raw_tp": (libbpf.PROG_TYPE_RAW_TRACEPOINT, 0),
    "fentry": (libbpf.PROG_TYPE_TRACING, libbpf.TRACE_FENTRY),
    "kprobe": (libbpf.PROG_TYPE_KPROBE, 0),
}
_SAYS: dict[_Way, str] = {
    "tp_btf": "BTF tracepoint",
    "raw_tp": "raw tracepoint",
    "fentry": "fentry",
    "kprobe": "kprobe",
    "iter": "BPF iterator",
}
# First, and a begin not without: an end alone is passed over, but what has no end would never end.
_ENDS = ("_end", "_leave", "_sleep")

_KPROBES = Path("/sys/bus/event_source/devices/kprobe")  # since 4.17

# Errors of this process and not of the way: another would meet them too.
_OWN_ERRORS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


class CoreObject:
    """The object, loaded and attached. Every refusal of one program makes a new object, so nothing half done stays.

    Args:
        path: of the object.
        prepare: called with each object before it is loaded.
        fill: called with the loaded one before its programs are attached.
        leave_out: programs that are not wanted.
        scan_root_fd: the cgroup that iterators begin at.

    `how` says of each program how it is attached, or was tried last; `failures` why the missing ones are.

    Raises:  OSError: the reason is the object as a whole, or that this process has no fds or memory left.
    """

    def __init__(
        self,
        path: Path,
        *,
        prepare: Callable[[libbpf.Object], None],
        fill: Callable[[libbpf.Object], None],
        scan_root_fd: int,
        leave_out: Collection[str] = (),
    ) -> None:
        self.how: dict[str, str] = {}
        self.failures: dict[str, OSError] = {}
        self._refused: dict[tuple[str, _Way], OSError] = {}
        self._names: list[str] = []
        while True:
            self.object = libbpf.Object(path)
            try:
                prepare(self.object)
                ways = self._choose(leave_out)
                self.object.load()
                fill(self.object)
                self._attach(ways, scan_root_fd)
                return
            except _Refused as refusal:
                self.object.close()
                self._refuse(refusal.program, refusal.way, refusal.error)
            except libbpf.ProgramRefused as error:
                self.object.close()
                if error.errno in _OWN_ERRORS or error.program not in ways:
                    raise
                self._refuse(error.program, ways[error.program], error)
            except BaseException:
                self.object.close()
                raise

    def _refuse(self, program: str, way: _Way, error: OSError) -> None:
        # What the kernel does not permit one program it permits none: each attempt costs another load.
        programs = self._names if error.errno == errno.EPERM or is_of_lockdown(error) else [program]
        for name in programs:
            self._refused.setdefault((name, way), error)

    def _choose(self, leave_out: Collection[str]) -> dict[str, _Way]:
        # Program → the best way not refused yet. What the kernel lacks is known before the load, in part.
        chosen: dict[str, _Way] = {}
        self._names = [name for name, _ in self.object.programs()]
        for name, handle in self.object.programs():
            kind, target = self.object.section(handle).split("/")
            for way in _WAYS[kind] if name not in leave_out else ():
                refusal = self._refused.get((name, way)) or self._cannot(handle, way, target)
                if refusal is None:
                    chosen[name] = way
                    self.how[name] = f"{_SAYS[way]} {target}"
                    self.failures.pop(name, None)
                    break
                self._refused[name, way] = refusal
                if name not in self.failures:  # of several reasons the first, which is the best way's
                    self.how[name], self.failures[name] = f"{_SAYS[way]} {target}", refusal
            else:
                self.object.leave_out(handle)
        return chosen

    def _cannot(self, handle: ctypes.c_void_p, way: _Way, target: str) -> OSError | None:
        if way == "kprobe" and not _KPROBES.exists():
            return OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        try:
            if way in _TYPES:
                self.object.set_type(handle, *_TYPES[way])
            if way not in ("raw_tp", "kprobe"):
                self.object.set_target(handle, target)
        except OSError as error:
            return error
        return None

    def _attach(self, ways: dict[str, _Way], scan_root_fd: int) -> None:
        handles = dict(self.object.programs())
        for name in sorted(ways, key=lambda name: not name.endswith(_ENDS)):
            way, handle = ways[name], handles[name]
            if partner_of(name) in self.failures:
                self.failures[name] = self.failures[partner_of(name)]
                continue
            try:
                if way == "iter":
                    self.object.attach_cgroup_iter(name, handle, scan_root_fd)
                elif way in ("tp_btf", "fentry"):
                    self.object.attach_trace(name, handle)
                else:
                    self.object.attach(name, handle)
            except OSError as error:
                if error.errno in _OWN_ERRORS:
                    raise
                kind = self.object.section(handle).split("/")[0]
                if way != _WAYS[kind][-1]:
                    raise _Refused(name, way, error) from None
                self.failures[name] = error


class _Refused(Exception):
    # The kernel took the program and would not attach it, and there is another way to try.
    def __init__(self, program: str, way: _Way, error: OSError) -> None:
        super().__init__(program)
        self.program = program
        self.way = way
        self.error = error
