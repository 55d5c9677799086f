"""What a latency-sensitive pod feels of its neighbours' memory: how long its own work takes on a file that it maps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from koordebpf.units import MIB

# Each request looks at pages of the file at random, as an index is looked at; one starts each millisecond, or at once
# when the one before took longer.
_WORK = """
import json, mmap, os, random, sys, time
procs, name, seconds, warm_s = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
with open(procs, "w") as file:
    file.write(str(os.getpid()))
fd = os.open(name, os.O_RDONLY)
size = os.fstat(fd).st_size
pages = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
pages.madvise(mmap.MADV_RANDOM)
steps = range(0, size, mmap.PAGESIZE)
for at in steps:
    pages[at]
print("ready", flush=True)
sys.stdin.readline()
random.seed(1)
took, begin = [], time.monotonic() + warm_s
is_warm = False
while time.monotonic() < begin + seconds:
    if not is_warm and time.monotonic() >= begin:
        is_warm, took = True, []
        print("warm", flush=True)
    began = time.perf_counter_ns()
    for at in random.choices(steps, k=64):
        pages[at]
    took.append((time.perf_counter_ns() - began) / 1e6)
    time.sleep(max(0.001 - took[-1] / 1e3, 0))
print(json.dumps(took))
"""


class Paging(msgspec.Struct, frozen=True):
    """Milliseconds of each request; what the pod refaulted, in pages, and stalled meanwhile."""

    took_ms: list[float]
    refaults: int
    stall_ms: float


def working_set(path: Path, mib: int) -> Path:
    """Write a file of which no page is in memory."""
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def paging(
    pod: Path, container: Path, file: Path, load: Sequence[object], seconds: float, before_s: float, warm_s: float = 0
) -> Paging:
    """Let a process of the container work on the file for so long, while another process is the load.

    Args:
        pod: the directory that counts; on cgroup v1 no stalls.
        container: of the process.
        file: its working set, which it reads once before the load starts.
        load: a command that joins a cgroup by itself.
        seconds: for so long.
        before_s: of the load before the first request.
        warm_s: of requests before the first one counts.
    """
    command = [sys.executable, "-S", "-c", _WORK, str(container / "cgroup.procs"), str(file), str(seconds), str(warm_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe:
        assert probe.stdin is not None and probe.stdout is not None
        assert probe.stdout.readline() == "ready\n"
        # Best-effort for the scheduler, too: what is felt is not the CPU that it takes.
        neighbour = subprocess.Popen(
            ["nice", "-n", "19", *map(str, load)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            time.sleep(before_s)
            probe.stdin.write("\n")
            probe.stdin.flush()
            assert probe.stdout.readline() == "warm\n"
            before, stalled = refaults(pod), _stalled_us(pod)
            out, _ = probe.communicate()
            return Paging(json.loads(out), refaults(pod) - before, (_stalled_us(pod) - stalled) / 1e3)
        finally:
            neighbour.send_signal(signal.SIGKILL)
            neighbour.wait()


def refaults(pod: Path) -> int:
    """Return how many file pages the pod has refaulted."""
    stat = dict(line.split() for line in (pod / "memory.stat").read_text().splitlines())
    return int(stat.get("total_workingset_refault_file") or stat["workingset_refault_file"])


def _stalled_us(pod: Path) -> int:
    file = pod / "memory.pressure"
    if not file.exists():
        return 0
    some = file.read_text().splitlines()[0]
    return int(some.rpartition("total=")[2])
