"""How large each CPU's perf buffer is."""

from __future__ import annotations

import mmap

import pytest

from koordebpf.kernel.bpf.perf_buffer import pages_per_cpu

MIB = 1 << 20


@pytest.mark.parametrize(("cpus", "pages"), [(1, 64), (8, 64), (9, 32), (16, 32), (48, 16), (256, 16)])
def test_it_suits_the_number_of_cpus(cpus: int, pages: int) -> None:
    assert pages_per_cpu(cpus) == pages


@pytest.mark.parametrize("cpus", [1, 2, 3, 4, 48, 64, 256])
def test_all_share_what_a_ring_would_have(cpus: int) -> None:
    pages = pages_per_cpu(cpus, 16 * MIB)
    assert pages & (pages - 1) == 0
    assert 16 * MIB // 2 < cpus * pages * mmap.PAGESIZE <= 16 * MIB


def test_none_is_so_small_that_a_burst_fills_it() -> None:
    assert pages_per_cpu(1024, 16 * MIB) == 16
