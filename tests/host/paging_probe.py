"""What a latency-sensitive pod feels of its neighbours' memory: how long its own work takes on a file that it maps."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from koordebpf.units import MIB

_LOOK_S = 0.2
# Each request looks at pages of the file at random, as an index is looked at; one starts each millisecond, or at once
# when the one before took longer.
_WORK = """
import json, mmap, os, random, select, sys, time
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
took, latest, end = [], time.monotonic() + warm_s, None
while end is None or time.monotonic() < end:
    if end is None and (time.monotonic() >= latest or select.select([sys.stdin], [], [], 0)[0]):
        end, took = time.monotonic() + seconds, []
        print("warm", flush=True)
    began = time.perf_counter_ns()
    for at in random.choices(steps, k=64):
        pages[at]
    took.append((time.perf_counter_ns() - began) / 1e6)
    time.sleep(max(0.001 - took[-1] / 1e3, 0))
print(json.dumps(took))
"""


class Paging(msgspec.Struct, frozen=True):
    """Milliseconds of each request; what the pod refaulted, in pages, and stalled meanwhile.

    `began_s` is when the first request began, of time.monotonic(): that of the warm-up.
    """

    took_ms: list[float]
    refaults: int
    stall_ms: float
    began_s: float


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
    pod: Path,
    container: Path,
    file: Path,
    load: Sequence[object],
    seconds: float,
    before_s: float,
    warm_s: float = 0,
    is_warm: Callable[[float], bool] | None = None,
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
        is_warm: tells before that, with `began_s` of the result, that they may count from now on.
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
            began_s = time.monotonic()
            probe.stdin.write("\n")
            probe.stdin.flush()
            while not select.select([probe.stdout], [], [], _LOOK_S)[0]:
                if is_warm is not None and is_warm(began_s):
                    probe.stdin.write("\n")
                    probe.stdin.flush()
                    is_warm = None
            assert probe.stdout.readline() == "warm\n"
            before, stalled = refaults(pod), _stalled_us(pod)
            out, _ = probe.communicate()
            return Paging(json.loads(out), refaults(pod) - before, (_stalled_us(pod) - stalled) / 1e3, began_s)
        finally:
            neighbour.send_signal(signal.SIGKILL)
            neighbour.wait()


def refaults(pod: Path) -> int:
    """Return how many file pages the pod has refaulted."""
    return memory_stat(pod)["workingset_refault_file"]


def memory_stat(pod: Path) -> dict[str, int]:
    """Return the rows of memory.stat with the pod's children in them, under the names of cgroup v2."""
    stat = dict(line.split() for line in (pod / "memory.stat").read_text().splitlines())
    return {name: int(stat.get(f"total_{name}", value)) for name, value in stat.items()}


def _stalled_us(pod: Path) -> int:
    file = pod / "memory.pressure"
    if not file.exists():
        return 0
    some = file.read_text().splitlines()[0]
    return int(some.rpartition("total=")[2])
