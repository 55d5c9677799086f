"""What the programs add to a reclaim episode, by the kernel's own clock for BPF programs."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from koordebpf.kernel import libbpf
from koordebpf.kernel.cgroupfs import find_memory_hierarchy
from koordebpf.kernel.objects import object_path
from tests.bench.figure import Figure
from tests.nodes import MIB, NodeCgroup

_STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
_SECONDS_OF_WALKS = 6


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


def _walk_file(limit_mib: int) -> None:
    # Twice what the cgroup may hold: every page of the walk is reclaimed again.
    size = 2 * limit_mib * MIB
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        for _ in range(2 * limit_mib):
            file.write(bytes(MIB))
        file.flush()
        os.fdatasync(file.fileno())
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as memory:
            end = os.times().elapsed + _SECONDS_OF_WALKS
            while os.times().elapsed < end:
                for at in range(0, size, mmap.PAGESIZE):
                    memory[at]


def kernel_cost() -> list[Figure]:
    """Run a task against its cgroup's limit, and read what begin and end cost a time on average."""
    hierarchy = find_memory_hierarchy()
    rows = []
    with (
        libbpf.Object(object_path("reclaim")) as programs,
        NodeCgroup(hierarchy.mount_point, hierarchy.version, 1024 * MIB) as node,
        _bpf_stats(),
    ):
        programs.load()
        fds: dict[str, int] = {}
        for name, handle in programs.programs():
            programs.attach(name, handle)
            fds[name] = int(libbpf.library().bpf_program__fd(ctypes.c_void_p(handle.value)))
        (container,) = node.add_pod("walker", limit_bytes=64 * MIB)
        pid = os.fork()
        if pid == 0:
            (container / "cgroup.procs").write_text(str(os.getpid()))
            _walk_file(64)
            os._exit(0)
        os.waitpid(pid, 0)
        for end in ("begin", "end"):
            time_ns, count = _run_stats(fds[f"on_mm_vmscan_memcg_reclaim_{end}"])
            each = time_ns / count if count else float("nan")
            rows.append(
                Figure(
                    f"kernel cost of one memcg reclaim, {end}",
                    "ns",
                    count,
                    each,
                    each,
                    each,
                    "mean of run_time_ns ÷ run_cnt (kernel.bpf_stats_enabled), a task walking a file twice its limit",
                )
            )
    return rows
