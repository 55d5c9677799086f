"""The kernel's own list of BPF programs, maps and links: what a process holds, and whether it is there any more."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from koordebpf.kernel.bpf import libbpf

InfoT = TypeVar("InfoT", bound=ctypes.Structure)
Kind = Literal["prog", "map", "link"]

_STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
_MAP_INFO_BYTES = 88  # of struct bpf_map_info, include/uapi/linux/bpf.h; every kernel fills as much as it knows
_NAME_BYTES = 16  # BPF_OBJ_NAME_LEN


class BpfIds(msgspec.Struct, frozen=True):
    """Ids of one process's BPF objects, or of all there are."""

    prog: frozenset[int]
    map: frozenset[int]
    link: frozenset[int]

    def alive(self) -> BpfIds:
        """Return those that the kernel still has."""
        return BpfIds(*(frozenset(i for i in getattr(self, kind) if _is_alive(kind, i)) for kind in _KINDS))

    def without(self, others: BpfIds) -> BpfIds:
        """Return those that are not among the others."""
        return BpfIds(*(getattr(self, kind) - getattr(others, kind) for kind in _KINDS))

    def __bool__(self) -> bool:
        return bool(self.prog or self.map or self.link)


_KINDS: tuple[Kind, ...] = ("prog", "map", "link")


def existing() -> BpfIds:
    """Return what the kernel has, of whomever."""
    return BpfIds(*(frozenset(_ids(kind)) for kind in _KINDS))


def _ids(kind: Kind) -> Iterator[int]:
    following = getattr(libbpf.library(), f"bpf_{kind}_get_next_id")
    number = ctypes.c_uint32(0)
    while following(number, ctypes.byref(number)) == 0:
        yield number.value
    # libbpf before 1.0 returns -1, later ones the error itself; both set errno.
    if (code := ctypes.get_errno()) != errno.ENOENT:
        raise OSError(code, f"bpf_{kind}_get_next_id: {os.strerror(code)}")


def wait_for_none(left: Callable[[], BpfIds], timeout_s: float) -> BpfIds:
    """Return what is still left when the time is over; the kernel frees after grace periods, not at once."""
    deadline = time.monotonic() + timeout_s
    while (ids := left()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return ids


def held_by(pid: int) -> BpfIds:
    """Return what the process has open."""
    ids: dict[str, set[int]] = {kind: set() for kind in _KINDS}
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            rows = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
        except FileNotFoundError:  # closed meanwhile
            continue
        # A link's fdinfo names its program too, which the process need not hold.
        kind = "link" if "link_id" in rows else "map" if "map_id" in rows else "prog" if "prog_id" in rows else None
        if kind:
            ids[kind].add(int(rows[f"{kind}_id"]))
    return BpfIds(*(frozenset(ids[kind]) for kind in _KINDS))


def programs_held() -> frozenset[int]:
    """Return the programs that some process of the machine holds, by themselves or by a link."""
    found = set()
    for info in Path("/proc").glob("[0-9]*/fdinfo/*"):
        with contextlib.suppress(OSError):  # closed meanwhile
            rows = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
            if "prog_id" in rows:
                found.add(int(rows["prog_id"]))
    return frozenset(found)


def names_of(programs: Collection[int]) -> dict[int, str]:
    """Return the names of those programs that are still there."""
    names = {}
    for number in programs:
        with contextlib.suppress(FileNotFoundError):
            names[number] = program(number).name
    return names


def _is_alive(kind: Kind, number: int) -> bool:
    try:
        os.close(_open(kind, number))
    except FileNotFoundError:
        return False
    return True


def _open(kind: Kind, number: int) -> int:
    call: Callable[[int], int] = getattr(libbpf.library(), f"bpf_{kind}_get_fd_by_id")
    if (fd := call(number)) < 0:
        # libbpf 1.x returns the error, older ones set errno.
        code = -fd if fd < -1 else ctypes.get_errno()
        raise OSError(code or errno.EINVAL, f"bpf {kind} {number}: {os.strerror(code)}")
    return fd


class _MapInfo(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("key_size", ctypes.c_uint32),
        ("value_size", ctypes.c_uint32),
        ("max_entries", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
        ("name", ctypes.c_char * _NAME_BYTES),
        ("rest", ctypes.c_char * (_MAP_INFO_BYTES - 24 - _NAME_BYTES)),
    )


class _ProgInfo(ctypes.Structure):
    # The first fields of struct bpf_prog_info.
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("before_name", ctypes.c_char * 56),
        ("name", ctypes.c_char * _NAME_BYTES),
        ("after_name", ctypes.c_char * 112),
        ("run_time_ns", ctypes.c_uint64),
        ("run_cnt", ctypes.c_uint64),
        ("recursion_misses", ctypes.c_uint64),
    )


class Program(msgspec.Struct, frozen=True):
    """One loaded program; its runs are counted while kernel.bpf_stats_enabled is 1."""

    name: str
    run_time_ns: int
    run_count: int
    misses: int  # runs that did not happen: it was already running on that CPU


@contextmanager
def runs_counted() -> Iterator[None]:
    """Let the kernel count the runs of every program; afterwards as it was before."""
    before = _STATS.read_text()
    _STATS.write_text("1")
    try:
        yield
    finally:
        _STATS.write_text(before)


def program(number: int) -> Program:
    """Return the kernel's info of one program."""
    info = _info(_open("prog", number), _ProgInfo())
    return Program(info.name.decode(), info.run_time_ns, info.run_cnt, info.recursion_misses)


def _info(fd: int, info: InfoT) -> InfoT:
    size = ctypes.c_uint32(ctypes.sizeof(info))
    try:
        error = libbpf.library().bpf_obj_get_info_by_fd(fd, ctypes.byref(info), ctypes.byref(size))
    finally:
        os.close(fd)
    if error:
        raise OSError(ctypes.get_errno(), f"bpf_obj_get_info_by_fd: {os.strerror(ctypes.get_errno())}")
    return info


class OtherMap:
    """A map of another process, opened by its name there."""

    def __init__(self, pid: int, name: str) -> None:
        for number in sorted(held_by(pid).map):
            info = _info(_open("map", number), _MapInfo())
            if info.name.decode() == name:
                self.map = libbpf.Map(name, _open("map", number), info.value_size, info.max_entries)
                return
        raise RuntimeError(f"process {pid} has no BPF map {name}")

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and value of every element."""
        yield from self.map.items()

    def first(self) -> bytes:
        """Return element 0 of an array."""
        value = ctypes.create_string_buffer(self.map.value_bytes)
        if libbpf.library().bpf_map_lookup_elem(self.map.fd, (0).to_bytes(4, "little"), value) != 0:
            raise RuntimeError(f"map {self.map.name} has no element 0")
        return value.raw

    def close(self) -> None:
        os.close(self.map.fd)
