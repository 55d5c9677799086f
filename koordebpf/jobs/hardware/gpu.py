"""What pods and containers use of GPUs, by the processes that the driver names. The driver is asked in a thread."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from koordebpf.errors import SupportError
from koordebpf.jobs.hardware.loop import ContainerCgroup, ThreadedCollector, containers_of
from koordebpf.kernel.cgroup.subtree import pids
from koordebpf.kernel.host.gpu import Gpu, GpuProcess, Nvml
from koordebpf.runner.context import NodeContext
from koordebpf.state.series.kinds import (
    CONTAINER_GPU_CORE,
    CONTAINER_GPU_MEMORY,
    NODE_GPU_CORE,
    NODE_GPU_MEMORY,
    NODE_GPU_MEMORY_TOTAL,
    POD_GPU_CORE,
    POD_GPU_MEMORY,
    SeriesKey,
)
from koordebpf.units import NS_PER_S

log = logging.getLogger(__name__)
_MOST_DIRECTORIES = 64  # of one container's subtree


def open_job(node: NodeContext) -> GpuCollector | None:
    """Return what measures the usage of GPUs; None: there are none."""
    try:
        nvml = Nvml()
    except SupportError as error:
        log.warning("usage of GPUs is not measured: %s", error)
        return None
    watch = node.measuring.watch
    return GpuCollector(nvml, lambda: containers_of(watch), watch.scope.hierarchy.mount_point)


class GpuCollector(ThreadedCollector[Sequence[ContainerCgroup]]):
    """`Accelerators` of koordlet: node, pod and container usage of each GPU. Owns `nvml` and closes it.

    Needs:   the machine's pid namespace (component host-processes): the driver names processes by its pids.
    """

    name = "usage of GPUs"
    period_ns = 5 * NS_PER_S  # Why: 12 samples in the shortest window of reports; the driver takes milliseconds

    def __init__(self, nvml: Nvml, containers: Callable[[], Sequence[ContainerCgroup]], mount: Path) -> None:
        """Begin.

        Args:
            nvml: the driver.
            containers: those of now, asked in the loop's thread.
            mount: of the hierarchy that their paths are in.
        """
        super().__init__()
        self._nvml = nvml
        self._containers = containers
        self._mount = mount
        self._owners: dict[int, ContainerCgroup | None] = {}  # by pid; None: of no container

    def prepare(self) -> Sequence[ContainerCgroup]:
        """As `ThreadedCollector.prepare`."""
        return self._containers()

    def measure(self, prepared: Sequence[ContainerCgroup]) -> Mapping[SeriesKey, float]:
        """As `ThreadedCollector.measure`."""
        processes = self._nvml.processes()
        self._learn({each.pid for each in processes}, prepared)
        return usage(processes, self._owners, self._nvml.gpus)

    def release(self) -> None:
        """As `ThreadedCollector.release`."""
        self._nvml.close()

    # Processes stay in their container: only new ones are looked for.
    def _learn(self, seen: set[int], containers: Sequence[ContainerCgroup]) -> None:
        here = {each.container_id for each in containers}
        known = {pid: one for pid, one in self._owners.items() if pid in seen and one and one.container_id in here}
        new = seen - known.keys()
        for one in containers if new else ():
            if not new:
                break
            its = _pids_of(self._mount / one.path) & new
            known |= dict.fromkeys(its, one)
            new -= its
        self._owners = known | dict.fromkeys(new)


def usage(
    processes: Iterable[GpuProcess], owners: Mapping[int, ContainerCgroup | None], gpus: Iterable[Gpu]
) -> dict[SeriesKey, float]:
    """Return the sums of node, pods and containers by GPU; `owners` by pid. A GPU without processes is not used: 0."""
    sums: dict[SeriesKey, float] = {}
    for gpu in gpus:
        sums |= dict.fromkeys(((kind, str(gpu.minor), gpu.uuid) for kind in (NODE_GPU_CORE, NODE_GPU_MEMORY)), 0.0)
        sums[NODE_GPU_MEMORY_TOTAL, str(gpu.minor), gpu.uuid] = float(gpu.memory_bytes)
    for each in processes:
        of, one = (str(each.gpu.minor), each.gpu.uuid), owners.get(each.pid)
        keys: list[tuple[SeriesKey, SeriesKey]] = [((NODE_GPU_CORE, *of), (NODE_GPU_MEMORY, *of))]
        if one is not None:
            keys.append(((POD_GPU_CORE, one.uid, *of), (POD_GPU_MEMORY, one.uid, *of)))
            keys.append(((CONTAINER_GPU_CORE, one.container_id, *of), (CONTAINER_GPU_MEMORY, one.container_id, *of)))
        for core, memory in keys:
            sums[core] = sums.get(core, 0.0) + each.core_percent
            if each.memory_bytes is not None:
                sums[memory] = sums.get(memory, 0.0) + each.memory_bytes
    return sums


def _pids_of(directory: Path) -> set[int]:
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return set()
    try:
        return pids(fd, _MOST_DIRECTORIES) or set()
    except OSError:
        return set()
    finally:
        os.close(fd)
