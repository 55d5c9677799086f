"""Jobs that measure what few nodes have: cycles per instruction, GPUs, cold memory; gates are koordlet's."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koordebpf.collect.collector import Collector
    from koordebpf.runner.context import NodeContext

log = logging.getLogger(__name__)

CPI_GATE = "CPICollector"
GPU_GATE = "Accelerators"
COLD_GATE = "ColdPageCollector"


def open_cpi(node: NodeContext) -> Collector | None:
    """Return what counts cycles per instruction; None: its gate is off, or nothing can be counted here."""
    if not node.config.feature_gates.get(CPI_GATE, False):
        return None
    from koordebpf.jobs.hardware.containers import containers_of
    from koordebpf.jobs.hardware.cpi import CpiCollector
    from koordebpf.kernel.cgroup.hierarchy import find_perf_event_mount
    from koordebpf.kernel.proc.cpu_topology import CpuTopologyFiles

    mount = find_perf_event_mount()
    if mount is None:
        log.warning("cycles per instruction are not counted: no hierarchy of cgroups has perf events")
        return None
    topology = node.stack.enter_context(CpuTopologyFiles())
    watch = node.measuring.watch
    return CpiCollector(lambda: containers_of(watch), lambda: topology.read().cpus, mount)


def open_gpu(node: NodeContext) -> Collector | None:
    """Return what measures the usage of GPUs; None: its gate is off, or there are none."""
    if not node.config.feature_gates.get(GPU_GATE, False):
        return None
    from koordebpf.errors import SupportError
    from koordebpf.jobs.hardware.containers import containers_of
    from koordebpf.jobs.hardware.gpu import GpuCollector
    from koordebpf.kernel.gpu import Nvml

    try:
        nvml = Nvml()
    except SupportError as error:
        log.warning("usage of GPUs is not measured: %s", error)
        return None
    watch = node.measuring.watch
    return GpuCollector(nvml, lambda: containers_of(watch), watch.scope.hierarchy.mount_point)


def open_cold_memory(node: NodeContext) -> Collector | None:
    """Return what measures cold memory; None: its gate is off, or the kernel does not look for it."""
    if not node.config.feature_gates.get(COLD_GATE, False):
        return None
    from koordebpf.errors import SupportError
    from koordebpf.jobs.hardware.cold_memory import ColdMemoryCollector, scanned_of
    from koordebpf.kernel.cgroup.idle_pages import require_kidled

    watch = node.measuring.watch
    try:
        require_kidled()
        if watch.scope.hierarchy.version != 1:
            raise SupportError("cold memory", "pods are on cgroup v2", "Boot with cgroup v1: kidled knows no other")
    except SupportError as error:
        log.warning("cold memory is not measured: %s", error)
        return None
    return ColdMemoryCollector(lambda: scanned_of(watch), watch.scope.hierarchy.mount_point)
