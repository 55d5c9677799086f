"""Jobs that measure what few nodes have: cycles per instruction, GPUs, cold memory. Each has koordlet's feature gate."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koordebpf.agent.colocation.jobs import ColocationParts
    from koordebpf.collect.collector import Collector

log = logging.getLogger(__name__)

CPI_GATE = "CPICollector"


def open_cpi(parts: ColocationParts, stack: contextlib.ExitStack) -> Collector | None:
    """Return what counts cycles per instruction; None: its gate is off, or nothing can be counted here."""
    if not parts.config.feature_gates.get(CPI_GATE, False):
        return None
    from koordebpf.collect.cpi import CpiCollector, containers_of
    from koordebpf.kernel.cgroup.hierarchy import find_perf_event_mount
    from koordebpf.kernel.proc.cpu_topology import CpuTopologyFiles

    mount = find_perf_event_mount()
    if mount is None:
        log.warning("cycles per instruction are not counted: no hierarchy of cgroups has perf events")
        return None
    topology = stack.enter_context(CpuTopologyFiles())
    watch = parts.measuring.watch
    return CpiCollector(lambda: containers_of(watch), lambda: topology.read().cpus, mount)
