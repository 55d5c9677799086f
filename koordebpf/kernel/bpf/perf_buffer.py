"""The perf buffer, what kernels before 5.8 have in place of the ring buffer: one for each CPU, read through libbpf."""

from __future__ import annotations

import ctypes
import mmap
import os
import select
from pathlib import Path

from koordebpf.errors import SupportError
from koordebpf.kernel.bpf import libbpf
from koordebpf.units import KIB, MIB, PAGE_BYTES

# A CPU may make all the records, so few CPUs have as much each as the ring has for all (koord_maps.h). Many share
# 2 MiB, down to 64 KiB: 360 records of a cgroup.
_MIN_BYTES, _MAX_BYTES, _ALL_BYTES = 64 * KIB, 256 * KIB, 2 * MIB
_CPUS_ONLINE = Path("/sys/devices/system/cpu/online")
_SIZE_AT = 4  # struct koord_head.size
_SAMPLE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32)
_LOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64)


def pages_per_cpu(cpus: int, page_bytes: int = PAGE_BYTES) -> int:
    """Return the pages of one CPU's buffer, a power of two."""
    share = 1 << (_ALL_BYTES // page_bytes // cpus).bit_length() >> 1
    return max(_MIN_BYTES // page_bytes, min(_MAX_BYTES // page_bytes, share))


class PerfReader:
    """Takes records out of the perf buffers of all CPUs as bytes; `fileno` is readable (EPOLLIN) when there are some.

    Records of one CPU come in their order, those of several CPUs one CPU after the other.
    """

    def __init__(self, buffers: libbpf.Map) -> None:
        """Give each CPU that is online its buffer.

        Args:
            buffers: the map, one element for each CPU.
        Raises:  SupportError: libbpf is older than 0.6. OSError: the kernel refuses the memory.
        """
        self._lib = libbpf.library()
        if not hasattr(self._lib, "libbpf_major_version"):
            raise SupportError(
                "perf buffer", "libbpf is older than 0.6", "Install libbpf1, or use Linux 5.8, which has a ring buffer."
            )
        self._lib.perf_buffer__new.restype = ctypes.c_void_p
        self._map = buffers
        self._pages = pages_per_cpu(buffers.max_entries)
        self._pending: list[bytes] = []
        self._callbacks = _SAMPLE(self._receive), _LOST(self._lose)  # kept: libbpf holds only the addresses
        self._buffers: ctypes.c_void_p | None = None
        self._online_fd = os.open(_CPUS_ONLINE, os.O_RDONLY | os.O_CLOEXEC)
        self._online = b""
        # libbpf's own epoll fd changes when a CPU comes online; this one does not.
        self._epoll = select.epoll()
        self.lost = 0  # records that found a buffer full
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self._online = os.pread(self._online_fd, mmap.PAGESIZE, 0)
        pointer = self._lib.perf_buffer__new(self._map.fd, ctypes.c_size_t(self._pages), *self._callbacks, None, None)
        error = self._lib.libbpf_get_error(ctypes.c_void_p(pointer))
        if not pointer or error:
            raise OSError(abs(error) or ctypes.get_errno(), f"perf_buffer__new: {os.strerror(abs(error))}")
        self._buffers = ctypes.c_void_p(pointer)
        self._epoll.register(self._lib.perf_buffer__epoll_fd(self._buffers), select.EPOLLIN)

    def _free(self) -> None:
        # Closing libbpf's epoll fd takes it out of ours.
        if self._buffers:
            self._lib.perf_buffer__free(self._buffers)
            self._buffers = None

    def _receive(self, _context: int, _cpu: int, data: int, _bytes: int) -> None:
        # The kernel pads a sample to 4 bytes more than a multiple of 8; the record tells its own size.
        self._pending.append(ctypes.string_at(data, ctypes.c_uint32.from_address(data + _SIZE_AT).value))

    def _lose(self, _context: int, _cpu: int, count: int) -> None:
        self.lost += count

    def fileno(self) -> int:
        """Return the fd for the event loop."""
        return self._epoll.fileno()

    def read(self) -> list[bytes]:
        """Return all records that are there; never waits. A CPU that came online has its buffer afterwards.

        Raises:  OSError: the kernel refuses the memory for it. What was there, and the buffers, come with a later call.
        """
        if self._online_fd < 0:
            return []
        if self._buffers:
            self._lib.perf_buffer__consume(self._buffers)
        if not self._buffers or os.pread(self._online_fd, mmap.PAGESIZE, 0) != self._online:
            self._free()
            self._open()
        taken, self._pending = self._pending, []
        return taken

    def close(self) -> None:
        """Free the buffers; the map stays. Twice is harmless."""
        self._free()
        self._epoll.close()
        if self._online_fd >= 0:
            os.close(self._online_fd)
            self._online_fd = -1
