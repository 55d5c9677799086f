"""What the programs add to a reclaim episode, by the kernel's own clock for BPF programs."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from koordebpf.kernel import libbpf
from koordebpf.kernel.cgroupfs import find_memory_hierarchy
from koordebpf.kernel.objects import object_path
from tests.bench.figure import Figure, figure
from tests.bench.report import CannotMeasure, Report
from tests.nodes import MIB, NodeCgroup

_STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
_LIMIT_MIB = 64


@contextmanager
def _bpf_stats() -> Iterator[None]:
    before = _STATS.read_text()
    _STATS.write_text("1")
    try:
        yield
    finally:
        _STATS.write_text(before)


def _run_stats(fd: int) -> tuple[int, int]:
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines() if ":" in line
    )
    return int(fields["run_time_ns"]), int(fields["run_cnt"])


def _walk_file(limit_mib: int, seconds: float) -> float:
    # Twice what the cgroup may hold: every page of the walk is reclaimed again. Returns pages walked a second.
    size = 2 * limit_mib * MIB
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        for _ in range(2 * limit_mib):
            file.write(bytes(MIB))
        file.flush()
        os.fdatasync(file.fileno())
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as memory:
            pages, begun = 0, time.monotonic()
            while (elapsed := time.monotonic() - begun) < seconds:
                for at in range(0, size, mmap.PAGESIZE):
                    memory[at]
                pages += size // mmap.PAGESIZE
            return pages / elapsed


def _walk_in(container: Path, seconds: float) -> float:
    # In a process of its own, in the container's cgroup; the answer comes back through a pipe.
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        (container / "cgroup.procs").write_text(str(os.getpid()))
        os.write(sending, repr(_walk_file(_LIMIT_MIB, seconds)).encode())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    if not answer:
        raise RuntimeError("the walker ended without an answer")
    return float(answer)


@contextmanager
def _attached(fds: dict[str, int] | None = None) -> Iterator[None]:
    with libbpf.Object(object_path("reclaim")) as programs:
        programs.load()
        for name, handle in programs.programs():
            programs.attach(name, handle)
            if fds is not None:
                fds[name] = int(libbpf.library().bpf_program__fd(ctypes.c_void_p(handle.value)))
        yield


def kernel_cost(report: Report) -> None:
    """Run a task against its cgroup's limit: what begin and end cost each time, and what the task notices of it."""
    hierarchy = find_memory_hierarchy()
    seconds = 2 if report.quick else 6
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 1024 * MIB) as node:
        (container,) = node.add_pod("walker", limit_bytes=_LIMIT_MIB * MIB)
        fds: dict[str, int] = {}
        with _bpf_stats(), _attached(fds):
            _walk_in(container, seconds)
            for end in ("begin", "end"):
                time_ns, count = _run_stats(fds[f"on_mm_vmscan_memcg_reclaim_{end}"])
                if count == 0:
                    raise CannotMeasure("the walker's reclaim was not seen")
                name = f"kernel cost of one memcg reclaim, {end}"
                method = (
                    "mean of run_time_ns ÷ run_cnt (kernel.bpf_stats_enabled), a task walking a file twice its limit"
                )
                report.add(Figure(name, "ns", count, time_ns / count, time_ns / count, time_ns / count, method))
        _paired(report, container, seconds)


def _paired(report: Report, container: Path, seconds: float) -> None:
    # With and without in turns, so that what the machine does beside it hits both.
    pairs = 3 if report.quick else 10
    slower: list[float] = []
    for pair in range(pairs):
        # Each goes first in half of the pairs.
        before = None if pair % 2 else _walk_in(container, seconds / 2)
        with _attached():
            attached = _walk_in(container, seconds / 2)
        slower.append((1 - attached / (before or _walk_in(container, seconds / 2))) * 100)
    method = "pages walked a second, attached against not, in pairs; a negative value is noise"
    report.add(figure("reclaiming task slowed down by the programs", "%", slower, method))
    if min(slower) < 0 < max(slower):
        report.cannot(
            f"the slow-down of a reclaiming task: its pairs give {min(slower):.1f} to {max(slower):.1f} %, so the row"
            " above is mostly noise; the two rows before it are exact"
        )
