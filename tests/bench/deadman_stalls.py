"""How long tasks wait for memory in each window of the dead man's switch, calm or not, and what its programs cost."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from koordebpf.kernel.bpf.deadman import support_of_dead_man
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, cgroup_id, find_memory_hierarchy
from tests.bench.figure import Figure, figure, percentile
from tests.bench.report import CannotMeasure, Report
from tests.host.rigs.short_machine import MOST_MIB, ShortMachine, machine_mib, stay_in_memory
from tests.host.rigs.thrashing_node import NODE_MIB, ThrashingNode
from tests.host.stall_windows import StallWindows
from tests.support.bpf_ids import Program, held_by, program, runs_counted
from tests.support.loads.workloads import BUILD

_S = 20.0
_SCALES = (1, 2)
_SETTLES_S = 2.0
# The kernel cuts a program's name at 15 letters.
_PROGRAMS = {
    "on_deadman_ente": "psi_memstall_enter",
    "on_deadman_leav": "psi_memstall_leave",
    "on_deadman_dire": "begin or end of direct reclaim",
    "on_deadman_memc": "begin or end of memcg reclaim",
    "on_deadman_shri": "mm_vmscan_lru_shrink_inactive",
}


def deadman_stalls(report: Report) -> None:
    """Add up the windows of a node cgroup of 256 and one of 512 MiB; in a guest, of the machine."""
    if not (support := support_of_dead_man()).works:
        raise CannotMeasure(support.reason)
    seconds = _S / 4 if report.quick else _S
    hierarchy = find_memory_hierarchy()
    for scale in _SCALES:
        if scale * NODE_MIB < machine_mib() // 2:
            _node(report, hierarchy, scale, seconds)
    if machine_mib() <= MOST_MIB:
        stay_in_memory()
        _machine(report, hierarchy, seconds)


def _node(report: Report, hierarchy: MemoryHierarchy, scale: int, seconds: float) -> None:
    mib = scale * NODE_MIB
    with (
        ThrashingNode(hierarchy, scale) as node,
        StallWindows(cgroup_id(node.node.path)) as windows,
    ):
        _rows(report, windows, node, f"a node cgroup of {mib} MiB", seconds, lambda: _flood(node.ls, mib, seconds))


def _machine(report: Report, hierarchy: MemoryHierarchy, seconds: float) -> None:
    with ShortMachine(hierarchy) as machine, StallWindows() as windows:

        def floods() -> subprocess.Popen[bytes]:
            machine.has_hog("be")
            return _flood(machine.be, machine_mib(), seconds)

        _rows(report, windows, machine, f"a machine of {machine_mib()} MiB", seconds, floods)
        machine.loses_hog("be")


def _rows(
    report: Report,
    windows: StallWindows,
    node: ThrashingNode | ShortMachine,
    name: str,
    seconds: float,
    floods: Callable[[], subprocess.Popen[bytes]],
) -> None:
    node.starts_walking()
    _row(report, windows, f"{name}, calm", seconds)
    flood = floods()
    _row(report, windows, f"{name}, a flood of page cache", seconds)
    flood.wait()
    node.grows()
    time.sleep(_SETTLES_S)
    with _costs(report, name):
        _row(report, windows, f"{name}, thrashing", seconds)


@contextmanager
def _costs(report: Report, where: str) -> Iterator[None]:
    def ran() -> dict[str, Program]:
        found = [program(number) for number in held_by(os.getpid()).prog]
        return {each.name: each for each in found if each.name in _PROGRAMS}

    with runs_counted():
        before = ran()
        yield
        for name, after in ran().items():
            count = after.run_count - before[name].run_count
            if not count:
                continue
            ns = (after.run_time_ns - before[name].run_time_ns) / count
            how = f"mean of the kernel's own count (kernel.bpf_stats_enabled), {where}, heartbeat fresh"
            report.add(
                Figure(f"its program at {_PROGRAMS[name]}", "ns", count, ns, ns, ns, f"{how}; missed {after.misses}")
            )


def _flood(container: Path, mib: int, seconds: float) -> subprocess.Popen[bytes]:
    command = [BUILD / "cacheflood", "/var/tmp", str(mib), str(round(seconds)), container / "cgroup.procs"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def _row(report: Report, windows: StallWindows, what: str, seconds: float) -> None:
    samples = windows.during(seconds)
    most = round(seconds / 0.5)
    least = f"; {percentile(samples, 0.1):.1f} ms or less in a tenth of them" if samples else ""
    shown = f"{len(samples)} of at most {most} windows had a stall{least}"
    how = f"{shown}; {seconds:g} s, all tasks together; the switch {windows.programs.counts}"
    report.add(figure(f"stalled of 500 ms: {what}", "ms", samples or [0.0], how))
