"""Blocks that were large go back to the kernel when they are freed, also after a larger one was freed before."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from koordebpf.kernel.host.protection import return_large_blocks

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if sys.argv[1] == "returned":
    return_large_blocks()
before = resident()
blocks = [b"x" * (4 << 20) for _ in range(3)]
del blocks
# No larger than what was freed: glibc takes them from the heap now, and keeps that.
blocks = [bytearray(3 << 20) for _ in range(3)]
for block in blocks:
    block[::4096] = b"y" * (3 << 8)
above = [bytes(5000) for _ in range(10)]
del block, blocks
print((resident() - before) >> 20)
"""


def left_mib(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_what_was_freed_is_not_resident():
    if left_mib("kept") < 2:
        pytest.skip("this C library returns them anyway")
    assert left_mib("returned") < 2
