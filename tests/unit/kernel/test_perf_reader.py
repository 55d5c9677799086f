"""The perf buffers' reader when a CPU comes online; a libbpf of this file's own stands for the kernel's refusal."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kernel.bpf import libbpf, perf_buffer
from koordebpf.kernel.bpf.perf_buffer import PerfReader


class Library:
    """Gives a record with each look at the buffers, while it has memory for them."""

    libbpf_major_version = 1

    def __init__(self) -> None:
        self.has_memory = True
        self.frees = 0

        def perf_buffer__new(_fd: int, _pages: object, receive: Any, *_: object) -> int:
            self._receive = receive
            return int(self.has_memory)

        self.perf_buffer__new = perf_buffer__new

    def libbpf_get_error(self, _: object) -> int:
        return 0 if self.has_memory else -errno.ENOMEM

    def perf_buffer__consume(self, _: object) -> None:
        record = struct.pack("<II", 1, 8)
        self._receive(None, 0, ctypes.cast(ctypes.c_char_p(record), ctypes.c_void_p).value, len(record))

    def perf_buffer__epoll_fd(self, _: object) -> int:
        self._open_fd = os.eventfd(0)
        return self._open_fd

    def perf_buffer__free(self, _: object) -> None:
        self.frees += 1
        os.close(self._open_fd)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    fake = Library()
    monkeypatch.setattr(libbpf, "library", lambda: fake)
    return fake


def test_a_refused_buffer_is_asked_for_again_and_nothing_is_lost(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    online = tmp_path / "online"
    online.write_text("0\n")
    monkeypatch.setattr(perf_buffer, "_CPUS_ONLINE", online)
    reader = PerfReader(libbpf.Map("events", 0, 4, 2))
    assert len(reader.read()) == 1
    online.write_text("0-1\n")
    library.has_memory = False
    for _ in range(2):
        with pytest.raises(OSError, match="Cannot allocate memory"):
            reader.read()
    library.has_memory = True
    assert len(reader.read()) == 1  # taken before the refusal
    assert len(reader.read()) == 1
    assert library.frees == 1
    reader.close()
    assert reader.read() == []
    assert library.frees == 2
