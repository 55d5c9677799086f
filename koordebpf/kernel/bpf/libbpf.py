"""ctypes on libbpf: BPF objects, their maps, links and the ring buffer.

Owns the fds and pointers; knows nothing of what the programs mean. Works with libbpf 0.5 (Ubuntu 22.04) to 1.x: errors
are asked of `libbpf_get_error`, which understands both generations.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import functools
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from koordebpf.errors import SupportError
from koordebpf.kernel.io.closing import Closing

_PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_SAMPLE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_LIBBPF_STRICT_ALL = 0xFFFFFFFF
# struct bpf_object_open_opts, sz to btf_custom_path (0.5), without which libbpf asks modules: CAP_SYS_ADMIN or EPERM.
_OPEN_OPTIONS = (ctypes.c_char_p * 7)(ctypes.c_char_p(56), None, None, None, None, None, b"/sys/kernel/btf/vmlinux")
_LINK_INFO_BYTES = 16  # union bpf_iter_link_info, include/uapi/linux/bpf.h
_BTF_KIND_STRUCT = 4
_CGROUP_ITER_DESCENDANTS_PRE = 2  # enum bpf_cgroup_iter_order
# enum bpf_prog_type and bpf_attach_type, include/uapi/linux/bpf.h
PROG_TYPE_KPROBE = 2
PROG_TYPE_RAW_TRACEPOINT = 17
PROG_TYPE_TRACING = 26
TRACE_RAW_TP = 23
TRACE_FENTRY = 24
# struct bpf_prog_info, include/uapi/linux/bpf.h: `recursion_misses` is its last member of 5.12, a u64.
_MISSES_AT = 26
_WARNING_BYTES = 512  # of one message; the verifier's log is one too, and as long as it likes
# "prog 'x': failed to load: -1"; before libbpf 0.8 "failed to load program 'x'".
_REFUSED_PROGRAM = re.compile(rb"prog(?:ram)? '(\w+)'.*failed|failed.* program '(\w+)'")

_POINTERS = (
    "bpf_object__open_file",
    "bpf_object__find_map_by_name",
    "bpf_object__next_program",
    "bpf_program__attach",
    "bpf_program__attach_iter",
    "bpf_program__attach_trace",
    "bpf_object__btf",
    "btf__type_by_id",
    "ring_buffer__new",
)


@functools.cache
def library() -> ctypes.CDLL:
    """Return libbpf with its prototypes set and its own messages silenced.

    Raises:  SupportError: libbpf is not installed.
    """
    for name in ("libbpf.so.1", "libbpf.so.0"):
        try:
            lib = ctypes.CDLL(name, use_errno=True)
            break
        except OSError:
            continue
    else:
        raise SupportError(
            "BPF", "libbpf is not installed", "Install libbpf1 (Debian 12, Ubuntu 24.04) or libbpf0 (Ubuntu 22.04)."
        )
    for name in _POINTERS:
        getattr(lib, name).restype = ctypes.c_void_p
    lib.bpf_program__name.restype = ctypes.c_char_p
    lib.bpf_program__section_name.restype = ctypes.c_char_p
    lib.btf__name_by_offset.restype = ctypes.c_char_p
    lib.libbpf_get_error.restype = ctypes.c_long
    # Since libbpf 1.0 the strict behaviour is the only one and the call does nothing.
    if hasattr(lib, "libbpf_set_strict_mode"):
        lib.libbpf_set_strict_mode(_LIBBPF_STRICT_ALL)
    lib.libbpf_set_print(_printer)
    return lib


_refused: list[str] = []  # programs that libbpf's warnings named since the last load began
_libc = ctypes.CDLL(None)


def _listen(level: int, template: bytes, arguments: int) -> int:
    # libbpf tells which program the kernel refused in its messages only. `bpftool prog load` shows the verifier's log.
    if level == 0:
        text = ctypes.create_string_buffer(_WARNING_BYTES)
        _libc.vsnprintf(text, ctypes.c_size_t(_WARNING_BYTES), template, ctypes.c_void_p(arguments))
        if found := _REFUSED_PROGRAM.search(text.value):
            _refused.append((found[1] or found[2]).decode())
    return 0


_printer = _PRINT(_listen)  # kept: libbpf holds only the address


class ProgramRefused(OSError):
    """The kernel, or libbpf for it, refuses one program and with it the load of its object."""

    def __init__(self, code: int, program: str) -> None:
        super().__init__(code, f"load {program}: {os.strerror(code)}")
        self.program = program


def _check_pointer(pointer: int | None, what: str) -> ctypes.c_void_p:
    error = library().libbpf_get_error(ctypes.c_void_p(pointer))
    if not pointer or error:
        raise OSError(abs(error) or ctypes.get_errno(), f"{what}: {os.strerror(abs(error) or ctypes.get_errno())}")
    return ctypes.c_void_p(pointer)


class Map:
    """One map of a loaded object. The object owns the fd."""

    def __init__(self, name: str, fd: int, value_bytes: int, max_entries: int) -> None:
        self.name = name
        self.fd = fd
        self.value_bytes = value_bytes
        self.max_entries = max_entries

    def memory(self, entries: int | None = None, *, writable: bool = False) -> mmap.mmap:
        """Return the array's elements as memory that the programs write to. Only BPF_F_MMAPABLE arrays.

        Args:
            entries: so many of the first. None: all.
            writable: by this process, too.
        """
        # Elements lie eight bytes aligned; the whole is rounded up to pages (kernel/bpf/arraymap.c array_map_mmap).
        stride = (self.value_bytes + 7) & ~7
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        length = -(-stride * (entries or self.max_entries) // mmap.PAGESIZE) * mmap.PAGESIZE
        return mmap.mmap(self.fd, length, mmap.MAP_SHARED, protection)

    def items(self, key_bytes: int = 8) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and value of every element, as they are at the moment each is read."""
        lib = library()
        following = ctypes.create_string_buffer(key_bytes)
        value = ctypes.create_string_buffer(self.value_bytes)
        key: Any = None
        for _ in range(self.max_entries):
            if lib.bpf_map_get_next_key(self.fd, key, following) != 0:
                return
            key = ctypes.create_string_buffer(following.raw, key_bytes)
            if lib.bpf_map_lookup_elem(self.fd, key, value) == 0:
                yield key.raw, value.raw

    def lookup(self, key: bytes) -> bytes | None:
        """Return the element as it is now; None: there is none."""
        value = ctypes.create_string_buffer(self.value_bytes)
        return value.raw if library().bpf_map_lookup_elem(self.fd, key, value) == 0 else None

    def update(self, key: bytes, value: bytes) -> bool:
        """Return whether the element is in the map now; False: the map is full."""
        return bool(library().bpf_map_update_elem(self.fd, key, value, 0) == 0)

    def delete(self, key: bytes) -> bool:
        """Return whether the element was there; it is gone afterwards."""
        return bool(library().bpf_map_delete_elem(self.fd, key) == 0)


class Object(Closing):
    """One BPF object: opened, loaded, and its programs attached one by one. `close()` detaches and frees everything."""

    def __init__(self, path: Path) -> None:
        self._lib = library()
        self._links: dict[str, ctypes.c_void_p] = {}
        opened = self._lib.bpf_object__open_file(os.fsencode(path), _OPEN_OPTIONS)
        self._pointer = _check_pointer(opened, f"open {path.name}")
        self.name = path.name

    def set_max_entries(self, name: str, max_entries: int) -> None:
        """Let a map be made with so many elements, a ring with so many bytes. Before `load`."""
        found = _check_pointer(self._lib.bpf_object__find_map_by_name(self._pointer, name.encode()), name)
        error = self._lib.bpf_map__set_max_entries(found, max_entries)
        if error:
            raise OSError(abs(error), f"{self.name}: {name} of {max_entries} entries: {os.strerror(abs(error))}")

    def load(self) -> None:
        """Let the kernel verify the programs and make the maps.

        Raises:  ProgramRefused: one program is the reason. OSError: something else; both with the kernel's errno.
        """
        _refused.clear()
        error = self._lib.bpf_object__load(self._pointer)
        if error and _refused:
            raise ProgramRefused(abs(error), _refused[-1])
        if error:
            raise OSError(abs(error), f"load {self.name}: {os.strerror(abs(error))}")

    def programs(self) -> Iterator[tuple[str, ctypes.c_void_p]]:
        """Yield name and handle of every program."""
        pointer = None
        while pointer := self._lib.bpf_object__next_program(self._pointer, ctypes.c_void_p(pointer)):
            yield self._lib.bpf_program__name(ctypes.c_void_p(pointer)).decode(), ctypes.c_void_p(pointer)

    def section(self, program: ctypes.c_void_p) -> str:
        """Return where a program says it belongs: `raw_tp/mm_vmscan_direct_reclaim_begin`."""
        return str(self._lib.bpf_program__section_name(program).decode())

    def leave_out(self, program: ctypes.c_void_p) -> None:
        """Do not load this program. Before `load`."""
        self._lib.bpf_program__set_autoload(program, ctypes.c_bool(False))

    def set_type(self, program: ctypes.c_void_p, prog_type: int, attach_type: int = 0) -> None:
        """Load a program as another type than its section says. Before `load`."""
        self._lib.bpf_program__set_type(program, prog_type)
        self._lib.bpf_program__set_expected_attach_type(program, attach_type)

    def set_target(self, program: ctypes.c_void_p, target: str) -> None:
        """Look a program's target up in the kernel's BTF. Before `load`. Raises OSError: it is not there."""
        error = self._lib.bpf_program__set_attach_target(program, 0, target.encode())
        if error:
            raise OSError(abs(error), f"{target}: {os.strerror(abs(error))}")

    def attach(self, name: str, program: ctypes.c_void_p) -> None:
        """Attach one program where its section says. Raises OSError with the kernel's errno."""
        self._links[name] = _check_pointer(self._lib.bpf_program__attach(program), f"attach {name}")

    def attach_trace(self, name: str, program: ctypes.c_void_p) -> None:
        """Attach a program whose target stands in the kernel's BTF. Raises OSError with the kernel's errno."""
        self._links[name] = _check_pointer(self._lib.bpf_program__attach_trace(program), f"attach {name}")

    def links(self) -> dict[str, int]:
        """Return the fd of every attached program's link."""
        return {name: int(self._lib.bpf_link__fd(link)) for name, link in self._links.items()}

    def attached(self) -> dict[str, int]:
        """Return the fd of every attached program."""
        return {name: int(self._lib.bpf_program__fd(handle)) for name, handle in self.programs() if name in self._links}

    def attach_cgroup_iter(self, name: str, program: ctypes.c_void_p, cgroup_fd: int) -> int:
        """Attach a cgroup iterator over a cgroup and all below it; return the link's fd for `run_iter`."""
        # struct bpf_iter_link_info: order u32, cgroup_fd u32, cgroup_id u64.
        info = (ctypes.c_uint32 * 4)(_CGROUP_ITER_DESCENDANTS_PRE, cgroup_fd, 0, 0)

        class _Options(ctypes.Structure):
            _fields_ = (("sz", ctypes.c_size_t), ("link_info", ctypes.c_void_p), ("link_info_len", ctypes.c_uint32))

        options = _Options(ctypes.sizeof(_Options), ctypes.addressof(info), _LINK_INFO_BYTES)
        pointer = self._lib.bpf_program__attach_iter(program, ctypes.byref(options))
        self._links[name] = _check_pointer(pointer, f"attach {name}")
        return int(self._lib.bpf_link__fd(self._links[name]))

    def layout(self, struct_name: str) -> tuple[int, dict[str, int]]:
        """Return size and member offsets, in bytes, of a structure in the object's BTF.

        Raises:  SupportError: the object does not know the structure.
        """
        btf = _check_pointer(self._lib.bpf_object__btf(self._pointer), f"BTF of {self.name}")
        index = self._lib.btf__find_by_name_kind(btf, struct_name.encode(), _BTF_KIND_STRUCT)
        if index <= 0:
            raise SupportError(
                f"BPF object {self.name}",
                f"it has no {struct_name}",
                "Build the objects from this package's sources: make bpf.",
            )
        # struct btf_type: name_off, info (its low half counts the members), size; then struct btf_member for each:
        # name_off, type, offset in bits.
        at = self._lib.btf__type_by_id(btf, index)
        _, info, size = (ctypes.c_uint32 * 3).from_address(at)
        members = (ctypes.c_uint32 * (3 * (info & 0xFFFF))).from_address(at + 12)
        offsets = {
            self._lib.btf__name_by_offset(btf, members[i]).decode(): members[i + 2] // 8
            for i in range(0, len(members), 3)
        }
        return size, offsets

    def map(self, name: str, value_bytes: int, max_entries: int | None = None) -> Map:
        """Return a map of the loaded object.

        Raises:  SupportError: its values are not `value_bytes` long: the object was built from other sources.
        """
        found = _check_pointer(self._lib.bpf_object__find_map_by_name(self._pointer, name.encode()), name)
        actual = self._lib.bpf_map__value_size(found)
        if value_bytes and actual != value_bytes:
            raise SupportError(
                f"BPF object {self.name}",
                f"map {name} has values of {actual} bytes where this package reads {value_bytes}",
                "Build the objects from this package's sources: make bpf.",
            )
        entries = max_entries or self._lib.bpf_map__max_entries(found)
        return Map(name, int(self._lib.bpf_map__fd(found)), actual, entries)

    def close(self) -> None:
        """Detach every program and free the object; twice is harmless."""
        for link in self._links.values():
            self._lib.bpf_link__destroy(link)
        self._links.clear()
        if self._pointer:
            self._lib.bpf_object__close(self._pointer)
            self._pointer = ctypes.c_void_p(None)


def link_identity(link_fd: int) -> tuple[int, int] | None:
    """Return the kernel's ids of a link and of the program it runs; None: the fd is no link (any more).

    A kprobe's is none before Linux 5.15, where it is a perf event's fd.
    """
    info = (ctypes.c_uint32 * 32)()  # struct bpf_link_info: type, id, prog_id, …
    length = ctypes.c_uint32(ctypes.sizeof(info))
    if library().bpf_obj_get_info_by_fd(link_fd, info, ctypes.byref(length)) != 0:
        return None
    return info[1], info[2]


def missed_runs(program_fd: int) -> int:
    """Return how often the kernel passed over a program that was running on that CPU; 0 before Linux 5.12.

    Cost:    2.6 µs.
    """
    info = (ctypes.c_uint64 * (_MISSES_AT + 1))()
    length = ctypes.c_uint32(ctypes.sizeof(info))
    if library().bpf_obj_get_info_by_fd(program_fd, info, ctypes.byref(length)) != 0:
        return 0
    return int(info[_MISSES_AT])


def run_iter(link_fd: int) -> None:
    """Run an attached iterator once, to its end. Raises OSError with the kernel's errno."""
    fd = library().bpf_iter_create(link_fd)
    if fd < 0:
        raise OSError(-fd, f"bpf_iter_create: {os.strerror(-fd)}")
    try:
        while os.read(fd, 4096):
            pass
    finally:
        os.close(fd)


# Of one `RingReader.read`. Why: 6 ms at 0.7 µs each, and twice what the agent's ring of 256 KiB has room for.
READ_AT_MOST = 8192


class RingReader:
    """Takes records out of a ring buffer map as bytes. The map's fd is readable (EPOLLIN) when there are some.

    Cost:    0.6 µs a record (docs in bpf/README.md).
    """

    def __init__(self, ring: Map, at_most: int = READ_AT_MOST) -> None:
        self._lib = library()
        self._at_most = at_most
        self._pending: list[bytes] = []
        self._callback = _SAMPLE(self._receive)  # kept: libbpf holds only the address
        self._pointer = _check_pointer(
            self._lib.ring_buffer__new(ring.fd, self._callback, None, None), "ring_buffer__new"
        )
        self.fd = ring.fd

    def _receive(self, _context: int, data: int, size: int) -> int:
        self._pending.append(ctypes.string_at(data, size))
        # libbpf takes the record out of the ring and then stops: ringbuf_process_ring of its ringbuf.c.
        return -1 if len(self._pending) >= self._at_most else 0

    def fileno(self) -> int:
        """Return the map's fd, for the event loop."""
        return self.fd

    def read(self) -> list[bytes]:
        """Return the records that are there, oldest first, `at_most` so many; never waits.

        The fd stays readable while there are more: without a bound a producer that is as fast would keep the reader
        for ever.
        """
        self._lib.ring_buffer__consume(self._pointer)
        taken, self._pending = self._pending, []
        return taken

    def close(self) -> None:
        """Free the reader; the ring stays. Twice is harmless."""
        if self._pointer:
            self._lib.ring_buffer__free(self._pointer)
            self._pointer = ctypes.c_void_p(None)


def explain_errno(code: int) -> tuple[str, str]:
    """Return why the kernel refuses BPF with this errno, and the remedy, as two sentences' bodies."""
    known: dict[int, tuple[str, str]] = {
        errno.EPERM: (
            "the kernel refuses (EPERM)",
            "Run as root or give CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before 5.8).",
        ),
        errno.EACCES: ("the verifier refuses the program (EACCES)", "Please report the kernel release."),
        errno.ENOENT: ("this kernel has no such tracepoint, or no kprobes (ENOENT)", "None on this kernel."),
        errno.ESRCH: (
            "this kernel has no BTF or lacks a type the program needs (ESRCH)",
            "Use a kernel with CONFIG_DEBUG_INFO_BTF=y; for cgroup iterators, Linux 6.1.",
        ),
        errno.EINVAL: ("this kernel lacks a feature the program needs (EINVAL)", "None on this kernel."),
        errno.EMFILE: ("the process may open no more files (EMFILE)", "Raise RLIMIT_NOFILE."),
        errno.ENOMEM: ("out of locked memory (ENOMEM)", "Raise RLIMIT_MEMLOCK."),
    }
    return known.get(
        code, (f"{os.strerror(code)} ({errno.errorcode.get(code, code)})", "Please report the kernel release.")
    )
