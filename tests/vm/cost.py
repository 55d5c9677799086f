"""`python -m tests.vm.cost`: what one run of each program costs on the running kernel, by the kernel's own clock.

Provokes what can be provoked without harm to the machine, a cgroup's limit in place of the whole memory; a program that
did not run has no figure.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from koordebpf.collect.scope import open_scope, signal_request
from koordebpf.events.layout import check_layout
from koordebpf.kernel.backends.select import open_signals
from koordebpf.kernel.bpf import libbpf
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.kernel.signals import Backend
from tests.support.bpf_ids import held_by, runs_counted
from tests.support.loads.workloads import BUILD
from tests.support.nodes import MIB, NodeCgroup

# What else runs on the machine makes a round dearer, never cheaper.
_ROUNDS = 5
_CREATED = 500
_SCANS = 200
_OOM_KILLS = 23
_THRASH_S = 2


class Cost(msgspec.Struct, frozen=True):
    """The mean of the cheapest round, and how often the program ran in that."""

    ns: int
    runs: int


class Costs(msgspec.Struct, frozen=True):
    """All of them, and where they were measured."""

    kernel: str
    programs: dict[str, Cost]


# struct bpf_prog_info, include/uapi/linux/bpf.h, as far as run_cnt (5.1).
class _ProgInfo(ctypes.Structure):
    _fields_ = (
        ("skipped", ctypes.c_uint8 * 128),
        ("btf_id", ctypes.c_uint32),
        ("func_info_rec_size", ctypes.c_uint32),
        ("func_info", ctypes.c_uint64),
        ("nr_func_info", ctypes.c_uint32),
        ("skipped_too", ctypes.c_uint8 * 44),
        ("run_time_ns", ctypes.c_uint64),
        ("run_cnt", ctypes.c_uint64),
    )


def read(program_id: int) -> tuple[str, int, int]:
    """Return a loaded program's whole name, which its info cuts to 15 characters, its ns so far and its runs."""
    lib = libbpf.library()
    lib.btf__load_from_kernel_by_id.restype = ctypes.c_void_p
    fd = lib.bpf_prog_get_fd_by_id(program_id)
    if fd < 0:
        raise OSError(-fd, f"program {program_id}: {os.strerror(-fd)}")
    try:
        # struct bpf_func_info: insn_off, type_id.
        function = (ctypes.c_uint32 * 2)()
        info = _ProgInfo(func_info_rec_size=8, nr_func_info=1, func_info=ctypes.addressof(function))
        length = ctypes.c_uint32(ctypes.sizeof(info))
        if error := lib.bpf_obj_get_info_by_fd(fd, ctypes.byref(info), ctypes.byref(length)):
            raise OSError(-error, f"info of program {program_id}: {os.strerror(-error)}")
    finally:
        os.close(fd)
    btf = ctypes.c_void_p(lib.btf__load_from_kernel_by_id(info.btf_id))
    try:
        kind = lib.btf__type_by_id(btf, function[1])
        name = lib.btf__name_by_offset(btf, ctypes.c_uint32.from_address(kind).value).decode()
    finally:
        lib.btf__free(btf)
    return name, info.run_time_ns, info.run_cnt


def measure() -> Costs:
    """Open everything as the agent does, provoke, and read what each program cost."""
    hierarchy = find_memory_hierarchy()
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 512 * MIB) as node:
        (walker,) = node.add_pod("walker", limit_bytes=16 * MIB)
        request = signal_request(open_scope(hierarchy, node.path), 0)
        signals = open_signals(request, check_layout, "co-re")
        try:
            ids = sorted(held_by(os.getpid()).prog)
            best: dict[str, Cost] = {}
            with runs_counted():
                for _ in range(_ROUNDS):
                    before = {name: (ns, runs) for name, ns, runs in map(read, ids)}
                    _provoke(walker, signals)
                    for name, ns, runs in map(read, ids):
                        ns_before, runs_before = before[name]
                        if runs > runs_before:
                            cost = Cost((ns - ns_before) // (runs - runs_before), runs - runs_before)
                            best[name] = min(cost, best.get(name, cost), key=lambda each: each.ns)
        finally:
            signals.close()
    return Costs(platform.release(), best)


def _provoke(walker: Path, signals: Backend) -> None:
    thrash = [BUILD / "thrash", "/var/tmp", "64", str(_THRASH_S), walker / "cgroup.procs"]
    subprocess.run(thrash, check=True, stdout=subprocess.DEVNULL)
    for _ in range(_CREATED):
        (walker.parent / "passing").mkdir()
        (walker.parent / "passing").rmdir()
        signals.read()
    for _ in range(_OOM_KILLS):
        _die_of_memory(walker)
    if signals.can_scan:
        for _ in range(_SCANS):
            signals.scan().release()
    signals.read()


def _die_of_memory(cgroup: Path) -> None:
    pid = os.fork()
    if pid == 0:
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))
        bytearray(128 * MIB)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != -signal.SIGKILL:
        raise RuntimeError(f"a task that holds more than its limit ended with {status}")


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(measure()), indent=1) + b"\n")
