"""Whether most of a cgroup's memory is the kernel's."""

from __future__ import annotations

import pytest

from koordebpf.state.measured import is_mostly_kernel
from koordebpf.units import MIB


@pytest.mark.parametrize(
    ("kernel", "of", "is_most"),
    [
        (64 * MIB, 128 * MIB - 1, True),
        (64 * MIB, 128 * MIB, False),
        (64 * MIB - 1, 64 * MIB, False),  # of small pods it often is
        (64 * MIB, None, True),
        (None, 1, False),
    ],
)
def test_it_is_the_larger_part_of_what_is_large(kernel: int | None, of: int | None, is_most: bool) -> None:
    assert is_mostly_kernel(kernel, of) is is_most
