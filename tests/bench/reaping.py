"""How long after a kill the memory of several processes is free, reaped one after another and side by side."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from koordebpf.demo.node import remove_subtree
from koordebpf.kernel.cgroup import reaping as reapers
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, cgroup_id, find_memory_hierarchy
from koordebpf.kernel.cgroup.kill import Kill, KillTarget, raise_thread_priority
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.bench.figure import figure
from tests.bench.report import Report
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB

_LEFT_BYTES = 32 * MIB
_POLL_S = 0.0003
_DEADLINE_NS = 30 * NS_PER_S


def reaping(report: Report) -> None:
    """Kill pods of 1 GiB in one, four and sixteen processes, and in huge pages; pairs in turn, n ≥ 20 each."""
    n = 3 if report.quick else 20
    hierarchy = find_memory_hierarchy()
    most, took = reapers._MOST_REAPERS, {}
    try:
        for processes, huge in ((4, False), (16, False), (1, False), (1, True)):
            for number in range(n):
                for reapers_now in (1, most) if number % 2 else (most, 1):
                    if processes == 1 and reapers_now == 1:
                        continue
                    reapers._MOST_REAPERS = reapers_now
                    key = processes, huge, reapers_now
                    took.setdefault(key, []).append(_once(hierarchy, processes, huge=huge))
    finally:
        reapers._MOST_REAPERS = most
    for (processes, huge, reapers_now), values in took.items():
        pages = "huge pages" if huge else "4 KiB pages"
        how = "one after another" if reapers_now == 1 and processes > 1 else "side by side"
        report.add(
            figure(
                f"kill → 1 GiB free again, {processes} × {1024 // processes} MiB in {pages}, {how}",
                "ms",
                values,
                "from the first signal until the pod's usage, polled each 0.3 ms, is below 32 MiB",
            )
        )


def _once(hierarchy: MemoryHierarchy, processes: int, *, huge: bool) -> float:
    raise_thread_priority()
    with _pod(hierarchy) as (memory, freezer):
        more = ["--cgroup", freezer / "c" / "cgroup.procs"] if freezer else []
        hogs = [Hog(memory / "c", 1024 // processes, *more, huge=huge, hold_s=60) for _ in range(processes)]
        usage = memory / ("memory.current" if hierarchy.version == 2 else "memory.usage_in_bytes")
        while int(usage.read_text()) < 1024 * MIB:
            time.sleep(0.005)
        time.sleep(0.1)
        freed_ns: list[int] = []
        watch = threading.Thread(target=_watch, args=(usage, freed_ns))
        watch.start()
        target = KillTarget(memory, cgroup_id(memory), hierarchy.version, freezer)
        began_ns = time.monotonic_ns()
        with Kill.begin(target) as kill:
            kill.finish(deadline_ns=began_ns + _DEADLINE_NS)
        watch.join()
        for hog in hogs:
            hog.stop()
        return (freed_ns[0] - began_ns) / NS_PER_MS


def _watch(usage: Path, freed_ns: list[int]) -> None:
    fd = os.open(usage, os.O_RDONLY)
    try:
        while int(os.pread(fd, 32, 0)) > _LEFT_BYTES:
            time.sleep(_POLL_S)
        freed_ns.append(time.monotonic_ns())
    finally:
        os.close(fd)


@contextmanager
def _pod(hierarchy: MemoryHierarchy) -> Iterator[tuple[Path, Path | None]]:
    name = f"koordebpf-reaped-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    memory, freezer = hierarchy.mount_point / name, hierarchy.freezer_mount_point
    paths = [memory, *([freezer / name] if freezer else [])]
    for path in paths:
        (path / "c").mkdir(parents=True)
    try:
        yield memory, freezer and freezer / name
    finally:
        remove_subtree(memory, hierarchy.version)
        for path in paths[1:]:
            for each in (path / "c", path):
                each.rmdir()
