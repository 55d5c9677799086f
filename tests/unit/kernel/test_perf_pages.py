"""How large each CPU's perf buffer is."""

from __future__ import annotations

import mmap

import pytest

from koordebpf.kernel.bpf.perf_buffer import pages_per_cpu

KIB = 1 << 10


@pytest.mark.parametrize("page_kib", [4, 16, 64])
@pytest.mark.parametrize(("cpus", "kib"), [(1, 256), (8, 256), (9, 128), (16, 128), (48, 64), (256, 64)])
def test_it_suits_the_number_of_cpus(cpus: int, kib: int, page_kib: int) -> None:
    assert pages_per_cpu(cpus, page_bytes=page_kib * KIB) * page_kib == kib


def test_none_is_so_small_that_a_burst_fills_it() -> None:
    assert pages_per_cpu(1024) * mmap.PAGESIZE == 64 * KIB
