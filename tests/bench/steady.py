"""What the agent costs while nothing happens."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from tests.bench.figure import at_most
from tests.bench.nodes import full_node
from tests.bench.report import Report
from tests.support.agent_process import AgentProcess

_WARM_S = 5
PERF_S = 5
_MIB_KIB = 1024


def steady(report: Report) -> None:
    """Watch the agent's own cost on nodes of two sizes, 120 s each."""
    seconds = 15 if report.quick else 120
    for pods, containers, cpu_percent, rss_mib in ((110, 330, 0.5, 60), (500, 1000, 2, 75)):
        size = f"{pods} pods / {containers} containers"
        report.say(f"{size} for {seconds} s")
        with full_node(pods, containers) as node, tempfile.TemporaryDirectory() as name:
            manifest = node.cgroup.write_manifest(Path(name) / "pods.json", 70, 65)
            with AgentProcess(node.cgroup, manifest, audit=Path(name) / "audit.jsonl") as agent:
                time.sleep(_WARM_S)
                watch_cost(report, agent.pid, size, seconds, cpu_percent, rss_mib)


def watch_cost(
    report: Report,
    pid: int,
    size: str,
    seconds: int,
    cpu_percent: float,
    rss_mib: float,
    calls_per_s: float | None = None,
) -> None:
    """Watch a process for some seconds."""
    cpu, waits, started_s = cpu_s(pid), _voluntary_switches(pid), time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - started_s
    percent = (cpu_s(pid) - cpu) / elapsed * 100
    report.add(
        at_most(f"steady CPU, {size}", "%core", percent, cpu_percent, f"utime + stime of all threads over {seconds} s")
    )
    memory = rollup_mib(pid)
    report.add(at_most(f"steady RSS, {size}", "MiB", memory["Rss"], rss_mib, "smaps_rollup at the end"))
    report.add(at_most(f"steady PSS, {size}", "MiB", memory["Pss"], None, "smaps_rollup at the end"))
    wakeups = (_voluntary_switches(pid) - waits) / elapsed
    report.add(at_most(f"wake-ups, {size}", "/s", wakeups, None, "voluntary context switches of all threads"))
    if (calls := syscalls_per_s(pid)) is None:
        report.cannot("syscalls a second: perf stat -e raw_syscalls:sys_enter does not work here")
    else:
        report.add(at_most(f"syscalls, {size}", "/s", calls, calls_per_s, f"perf stat over {PERF_S} s after the rest"))


def cpu_s(pid: int) -> float:
    """Return the CPU time of the process so far, to the nanosecond.

    The fields of /proc/PID/stat are of ticks of 10 ms, which is 0.05 % of 20 s. Source: clock_getcpuclockid(3), and
    CPUCLOCK_SCHED of include/linux/posix-timers.h.
    """
    return time.clock_gettime(~pid << 3 | 2)


def _voluntary_switches(pid: int) -> int:
    statuses = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(re.findall(r"(?m)^voluntary_ctxt_switches:\s+(\d+)", text)[0]) for text in statuses)


def rollup_mib(pid: int) -> dict[str, float]:
    """Return /proc/PID/smaps_rollup, row → MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) / _MIB_KIB for line in lines}


def syscalls_per_s(pid: int) -> float | None:
    """Return how many system calls a process makes, over some seconds; None: they cannot be counted here."""
    if shutil.which("perf") is None:
        return None
    command = ["perf", "stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p", str(pid), "sleep", str(PERF_S)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    count = done.stderr.split(",")[0].strip()
    return int(count) / PERF_S if count.isdigit() else None
