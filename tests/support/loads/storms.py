"""Loads that reclaim in vain, tests/workloads/storm.c and visit.c, and the kernel's own count of their episodes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec

from koordebpf.kernel.cgroup.hierarchy import cgroup_id
from tests.support.loads.workloads import BUILD
from tests.support.tracefs import TRACEFS

_EVENT_ID = TRACEFS / "events/vmscan/mm_vmscan_memcg_reclaim_end/id"
LIMIT_BYTES = 3 << 19  # less than a huge page; the rest is for page tables, which the kernel frees late


def can_count() -> bool:
    """Whether tracefs is there, which gives tracepoints their numbers."""
    return _EVENT_ID.exists()


class StormResult(msgspec.Struct, frozen=True):
    """What one task did from `ready_ns` to `done_ns`, in `cpu_ns`; `episodes` is what its own perf counter saw end."""

    cgroup_id: int
    episodes: int
    cpu_ns: int
    ready_ns: int
    done_ns: int


class Storm:
    """One task that reclaims in vain for `ms`, in a container that gets a limit of its own."""

    def __init__(self, container: Path, ms: int) -> None:
        self.cgroup_id = cgroup_id(container)
        limit(container)
        usage = container / ("memory.current" if (container / "memory.max").exists() else "memory.usage_in_bytes")
        given = [ms, _event_id(), usage, LIMIT_BYTES, container / "cgroup.procs"]
        self._process = subprocess.Popen([BUILD / "storm", *map(str, given)], stdout=subprocess.PIPE, text=True)

    def result(self, timeout_s: float) -> StormResult:
        """Wait for its end.

        Raises:  RuntimeError: it was killed, or ended by itself.
        """
        out, _ = self._process.communicate(timeout=timeout_s)
        said = _said(out)
        if self._process.returncode:
            raise RuntimeError(f"the storm ended with {self._process.returncode}: {out}")
        return StormResult(self.cgroup_id, said["episodes"], said["cpu"], said["ready"], said["done"])

    def stop(self) -> None:
        """Kill and reap it; twice is harmless."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def visit(folder: Path, count: int, last: Path, timeout_s: float = 120) -> int:
    """Let one task stall in `folder`/0, /1, … and end in the cgroup `last`; return how many reclaims it ended."""
    command = [BUILD / "visit", folder, count, _event_id(), last / "cgroup.procs"]
    done = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True, timeout=timeout_s)
    return _said(done.stdout)["episodes"]


def limit(container: Path) -> None:
    """Give a cgroup the limit that both loads need."""
    name = "memory.max" if (container / "memory.max").exists() else "memory.limit_in_bytes"
    (container / name).write_text(str(LIMIT_BYTES))


def _event_id() -> int:
    return int(_EVENT_ID.read_text())


def _said(out: str) -> dict[str, int]:
    return {word: int(number) for word, number in (line.split(" ") for line in out.splitlines())}
