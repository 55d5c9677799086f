"""A ring buffer that is filled on demand: the program of tests/workloads/bpf/ring_flood.bpf.c."""

from __future__ import annotations

import ctypes
import os
import struct
from types import TracebackType
from typing import Self

from koordebpf.kernel.bpf import libbpf
from tests.support.loads.workloads import BUILD

_FLOOD = struct.Struct("<QQII")  # struct flood
_SWITCHES_AT = 16
_PACKET = bytes(64)  # a test run of a "tc" program wants at least an Ethernet header


class _TestRun(ctypes.Structure):
    # struct bpf_test_run_opts, bpf/bpf.h of libbpf
    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("data_in", ctypes.c_char_p),
        ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_void_p),
        ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    )


class RingFlood:
    """A ring of `ring_bytes` and the program that writes into it. A forked child may `send` too, on another CPU.

    Args:
        is_mixed: four kinds of record in turns by chance; else koord_reclaim alone.
        discards: one of so many is reserved and given up; 0: none.
    """

    def __init__(self, ring_bytes: int, *, is_mixed: bool = False, discards: int = 0) -> None:
        self._object = libbpf.Object(BUILD / "ring_flood.bpf.o")
        try:
            self._object.set_max_entries("events", ring_bytes)
            self._object.load()
            self.ring = self._object.map("events", 0)
            floods = self._object.map("floods", _FLOOD.size)
            self._floods = floods.memory(writable=True)
            self._bytes = floods.max_entries * _FLOOD.size
            ((_, program),) = self._object.programs()
        except BaseException:
            self._object.close()
            raise
        self._fd = int(libbpf.library().bpf_program__fd(program))
        for at in range(_SWITCHES_AT, self._bytes, _FLOOD.size):
            struct.pack_into("<II", self._floods, at, is_mixed, discards)

    def send(self, n: int) -> None:
        """Let the kernel run the program `n` times on this CPU: so many records are written, lost or given up."""
        run = _TestRun(ctypes.sizeof(_TestRun), _PACKET, data_size_in=len(_PACKET), repeat=n)
        error = libbpf.library().bpf_prog_test_run_opts(self._fd, ctypes.byref(run))
        if error:
            raise OSError(ctypes.get_errno(), f"bpf_prog_test_run_opts: {os.strerror(ctypes.get_errno())}")

    def sent(self) -> dict[int, int]:
        """Return CPU → records that are in the ring or were."""
        rows = _FLOOD.iter_unpack(self._floods[: self._bytes])
        return {cpu: sent for cpu, (sent, *_) in enumerate(rows) if sent}

    def lost(self) -> int:
        """Return how many records found the ring full."""
        return sum(lost for _, lost, *_ in _FLOOD.iter_unpack(self._floods[: self._bytes]))

    def close(self) -> None:
        """Free the program and the ring."""
        self._floods.close()
        self._object.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
