"""Threads take their memory from one heap."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import ctypes, re, sys, threading
from pathlib import Path
from koordebpf.kernel.host.protection import share_one_arena

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
if len(sys.argv) > 1:
    share_one_arena()
taken = threading.Barrier(5)
def take():
    libc.malloc(ctypes.c_size_t(1000))
    taken.wait()
    taken.wait()
threads = [threading.Thread(target=take) for _ in range(4)]
for thread in threads:
    thread.start()
taken.wait()
# A heap of a thread is reserved as 64 MiB, aligned so, of which little is taken (glibc, malloc/arena.c).
size = 64 << 20
found = re.findall(r"(?m)^([0-9a-f]+)-([0-9a-f]+) (rw|--)-p 00000000 00:00 0 $", Path("/proc/self/maps").read_text())
areas = [(int(start, 16), int(end, 16), rights) for start, end, rights in found]
print(sum(
    rights == "rw" and start % size == 0 and rest == (end, start + size, "--")
    for (start, end, rights), rest in zip(areas, areas[1:])
))
taken.wait()
"""


@pytest.mark.skipif(sys.maxsize < 1 << 32, reason="not this kind of machine: heaps of 32 bits have another size")
def test_no_thread_has_a_heap_of_its_own() -> None:
    def heaps(*arguments: str) -> int:
        command = [sys.executable, "-c", _PROGRAM, *arguments]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    if heaps() == 0:
        pytest.skip("not this kind of machine: no glibc, or one CPU")
    assert heaps("one") == 0
