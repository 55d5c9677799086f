"""The memory of a ring buffer as the kernel leaves it (kernel/bpf/ringbuf.c), made by hand."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

BUSY, DISCARD = 1 << 31, 1 << 30
FIRST_DATA_PAGE = 3  # the kernel's own page and the two of the positions come before the data


def page_offset(at: int) -> int:
    """Return what the kernel writes into the header of the record at byte `at` of the data."""
    return FIRST_DATA_PAGE + at // mmap.PAGESIZE


def ring_image(
    ring_bytes: int,
    consumer: int,
    records: Iterable[tuple[int, bytes]],
    page_offset: Callable[[int], int] = page_offset,
) -> tuple[NDArray[np.uint8], int]:
    """Return the data, twice, and the producer's position. Each record comes with its flags; old bytes are all ones."""
    ring = bytearray(b"\xff" * ring_bytes)
    producer = consumer
    for flags, body in records:
        frame = struct.pack("<II", len(body) | flags, page_offset(producer % ring_bytes)) + body + bytes(-len(body) % 8)
        for i, byte in enumerate(frame):
            ring[(producer + i) % ring_bytes] = byte
        producer += len(frame)
    assert producer - consumer <= ring_bytes
    return np.frombuffer(bytes(ring) * 2, np.uint8), producer
