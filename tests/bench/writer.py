"""The cgroup writer on 110 pods in 330 containers: with nothing to change, one file, and all of them."""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path

from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.files import format_cpu_list, parse_cpu_list
from koordebpf.policy.reconcile import CgroupWrite, DesiredState
from koordebpf.units import NS_PER_S
from tests.bench.figure import figure
from tests.bench.report import CannotMeasure, Report
from tests.host.rigs.cgroups import CPUS, QUOTA, Cgroups

_PODS, _CONTAINERS = 110, 3


def writer(report: Report) -> None:
    """Apply one state each second, then other quotas, then other CPUs, and give everything back."""
    try:
        cgroups = Cgroups()
    except (SupportError, KeyError, OSError) as error:
        raise CannotMeasure(f"needs cpu and cpuset hierarchies that can be written: {error}") from None
    try:
        with tempfile.TemporaryDirectory(dir="/run") as folder, Journal(Path(folder) / "journal") as journal:
            _measure(report, cgroups, journal)
    finally:
        cgroups.close()


def _measure(report: Report, cgroups: Cgroups, journal: Journal) -> None:
    online = parse_cpu_list(Path("/sys/devices/system/cpu/online").read_text(), "online")
    if len(online) < 2:
        raise CannotMeasure("needs two CPUs")
    cgroups.put("", CPUS, format_cpu_list(online))
    pods = [f"be/pod{pod}" for pod in range(_PODS)]
    paths = ["be", *pods, *(f"{pod}/c{number}" for pod in pods for number in range(_CONTAINERS))]
    for path in paths:
        cgroups.make(path)
        cgroups.file(path, CPUS).write_text(format_cpu_list(online))

    def desired(cpus: frozenset[int], quota_us: int) -> DesiredState:
        writes = tuple(CgroupWrite(cgroups.path(path), CPUS, cpus) for path in paths)
        return DesiredState("a benchmark", (*writes, CgroupWrite(cgroups.path("be"), QUOTA, quota_us)))

    first, second = (frozenset({cpu}) for cpu in sorted(online)[:2])
    subject = CgroupWriter(cgroups.places, journal, enforce=True)
    now_s = 0

    def apply(state: DesiredState, writes: int) -> float:
        nonlocal now_s
        now_s += 1
        started_ns = time.perf_counter_ns()
        made = subject.apply(state, now_s * NS_PER_S).writes
        took_ms = (time.perf_counter_ns() - started_ns) / 1e6
        if made != writes:
            raise RuntimeError(f"{made} writes where {writes} were to be made")
        return took_ms

    n = 20 if report.quick else 100
    what = f"{len(paths)} directories, cgroup v{cgroups.version}"
    first_ms = apply(desired(first, 50_000), len(paths) + 1)
    gc.collect()
    gc.freeze()  # as in the agent after its first tick
    report.add(figure("cgroup files written for the first time", "ms", [first_ms], f"{what}; with the journal"))
    same = [apply(desired(first, 50_000), 0) for _ in range(5 * n)]
    report.add(
        figure("reconcile, nothing to change", "ms", same, f"{what}; one a second, each looks at a part", reach_p99=3)
    )
    quota = [apply(desired(first, 50_000 + 1000 * (number + 1)), 1) for number in range(n)]
    report.add(figure("reconcile, another quota", "ms", quota, f"{what}; one write"))
    both = 2 * len(paths)  # the union, then the set
    cpus = [apply(desired((second, first)[number % 2], 50_000), both + (number == 0)) for number in range(n // 5)]
    report.add(figure("reconcile, other CPUs for all", "ms", cpus, f"{what}; {both} writes, up and down the tree"))
    start_ns = time.perf_counter_ns()
    left = subject.restore(now_s * NS_PER_S).left
    gc.unfreeze()
    if left:
        raise RuntimeError(f"{len(left)} files were not restored")
    report.add(figure("cgroup files restored", "ms", [(time.perf_counter_ns() - start_ns) / 1e6], what))
