"""What a figure depends on beside the code: the machine it was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec

from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy


class Machine(msgspec.Struct, frozen=True):
    """The machine, and how busy it was when the run began."""

    kernel: str
    cpu: str
    cpus: int
    mem_total_mib: int
    mem_available_mib: int
    cgroups: str
    python: str
    loadavg: tuple[float, float, float]


def meminfo_kib(key: str) -> int:
    """Return one row of /proc/meminfo."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise KeyError(key)


def this_machine() -> Machine:
    """Return it as it is now."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    try:
        cgroups = f"memory on v{find_memory_hierarchy().version}"
    except SupportError as error:
        cgroups = str(error)
    return Machine(
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=models[0].partition(":")[2].strip() if models else "unknown",
        cpus=os.cpu_count() or 1,
        mem_total_mib=meminfo_kib("MemTotal") >> 10,
        mem_available_mib=meminfo_kib("MemAvailable") >> 10,
        cgroups=cgroups,
        python=platform.python_version(),
        loadavg=os.getloadavg(),
    )


def describe(machine: Machine) -> str:
    """Return it as two lines for people."""
    load = " ".join(f"{value:.2f}" for value in machine.loadavg)
    return (
        f"{machine.kernel}, {machine.cpu}, {machine.cpus} CPUs, {machine.mem_total_mib} MiB, {machine.cgroups},"
        f" Python {machine.python}\nat the begin: loadavg {load}, {machine.mem_available_mib} MiB available"
    )
