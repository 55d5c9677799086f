"""What latency-sensitive pods feel of best-effort ones: CPU shares and wake-ups, without suppression and with it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.strategies.cpu_suppress.values import Policy, SuppressSettings
from tests.bench.figure import at_least, at_most, figure
from tests.bench.report import CannotMeasure, Report
from tests.host.cyclic_probe import Felt
from tests.host.cyclic_probe import felt as felt_by
from tests.host.rigs.cgroups import BE_ROOT, CpuNode, cpu_node
from tests.host.suppression_loop import BY_QUOTA, SuppressionLoop

_LS = "kubepods/burstable/podls-1/c1"
_BE = f"{BE_ROOT}/podbe-1/c1"


def felt(report: Report) -> None:
    """Burn each CPU twice in a best-effort pod and once in another; probe that one without suppression and with it."""
    try:
        with cpu_node() as node:
            for _ in os.sched_getaffinity(0):
                for path in (_BE, _BE, _LS):
                    node.burn(path)
            _measure(report, node)
    except (SupportError, KeyError, OSError) as error:
        raise CannotMeasure(f"needs cpu and cpuset hierarchies that can be written: {error}") from None


def _measure(report: Report, node: CpuNode) -> None:
    seconds = 2 if report.quick else 10
    _add(report, "without suppression", felt_by(node, _LS, seconds, lambda: None), seconds)
    policies: tuple[Policy, ...] = ("cpuset", "cfsQuota", "cpuIdle")
    for policy in policies:
        if policy == "cpuset" and len(os.sched_getaffinity(0)) <= 2:
            report.cannot("what cpuset does: best-effort pods keep two CPUs, and this machine has no more")
            continue
        if policy == "cpuIdle" and not node.file(BE_ROOT, CgroupFile.CPU_IDLE).exists():
            report.cannot("what cpuIdle does: this kernel has no cpu.idle")
            continue
        _add(report, f"with {policy}", _held(node, policy, seconds), seconds)


def _held(node: CpuNode, policy: Policy, seconds: float) -> Felt:
    with tempfile.TemporaryDirectory(dir="/run") as folder:
        loop = SuppressionLoop(node, Path(folder) / "journal", SuppressSettings(policy=policy))
        try:
            loop.until(BY_QUOTA, lambda plan: plan.policy == policy)
            return felt_by(node, _LS, seconds, lambda: loop.round(BY_QUOTA))
        finally:
            loop.close()


def _add(report: Report, when: str, seen: Felt, seconds: int) -> None:
    method = f"a process that sleeps 1 ms again and again for {seconds} s; another one burns on each CPU"
    report.add(figure(f"wake-up of a latency-sensitive pod, {when}", "ms", seen.late_ms, method))
    got = "by cpuacct.usage or cpu.stat over the same time"
    report.add(at_least(f"CPU of latency-sensitive pods, {when}", "CPU", seen.ls_millicpu / 1000, None, got))
    report.add(at_most(f"CPU of best-effort pods, {when}", "CPU", seen.be_millicpu / 1000, None, got))
