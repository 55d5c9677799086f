"""Cold file pages of the node, its pods and containers, and what they use without them, where the kernel has kidled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.errors import KernelProblem, SupportError
from koordebpf.jobs.hardware.loop import ThreadedCollector, containers_of
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory
from koordebpf.kernel.cgroup.idle_pages import cold_bytes, require_kidled
from koordebpf.kernel.proc.meminfo import Meminfo
from koordebpf.runner.context import NodeContext
from koordebpf.state.series.kinds import (
    CONTAINER_MEMORY_COLD,
    CONTAINER_MEMORY_WITH_HOT_PAGES,
    NODE_MEMORY_COLD,
    NODE_MEMORY_WITH_HOT_PAGES,
    POD_MEMORY_COLD,
    POD_MEMORY_WITH_HOT_PAGES,
    SeriesKey,
)
from koordebpf.units import NS_PER_S

log = logging.getLogger(__name__)


def open_job(node: NodeContext) -> ColdMemoryCollector | None:
    """Return what measures cold memory; None: the kernel does not look for it."""
    watch = node.measuring.watch
    try:
        require_kidled()
        if watch.scope.hierarchy.version != 1:
            raise SupportError("cold memory", "pods are on cgroup v2", "Boot with cgroup v1: kidled knows no other")
    except SupportError as error:
        log.warning("cold memory is not measured: %s", error)
        return None
    return ColdMemoryCollector(lambda: scanned_of(watch), watch.scope.hierarchy.mount_point)


class Scanned(msgspec.Struct, frozen=True):
    """A cgroup whose idle pages are read: its keys, and its path relative to the hierarchy's root."""

    cold: SeriesKey
    hot: SeriesKey
    path: str


class ColdMemoryCollector(ThreadedCollector[Sequence[Scanned]]):
    """`ColdPageCollector` of koordlet. It reads only: kidled is set up by the machine's administrator.

    Source:  koordinator pkg/koordlet/metricsadvisor/collectors/coldmemoryresource.
    """

    name = "cold memory"
    period_ns = 5 * NS_PER_S  # Why: koordlet's coldpage-collector-interval, and its period of scans

    def __init__(
        self, scanned: Callable[[], Sequence[Scanned]], mount: Path, meminfo: Path = Path("/proc/meminfo")
    ) -> None:
        """Begin.

        Args:
            scanned: pods and containers of now, asked in the loop's thread.
            mount: of the memory hierarchy, v1.
            meminfo: of the machine.
        Raises:  SupportError: there is no such file.
        """
        super().__init__()
        self._scanned = scanned
        self._mount = mount
        self._meminfo = Meminfo(meminfo)

    def prepare(self) -> Sequence[Scanned]:
        """As `ThreadedCollector.prepare`."""
        return self._scanned()

    def measure(self, prepared: Sequence[Scanned]) -> Mapping[SeriesKey, float]:
        """As `ThreadedCollector.measure`."""
        cold, node = cold_bytes(self._mount), self._meminfo.read()
        used = node.mem_total_bytes - node.mem_free_bytes
        found: dict[SeriesKey, float] = {
            (NODE_MEMORY_COLD,): cold,
            (NODE_MEMORY_WITH_HOT_PAGES,): max(used - cold, 0),
        }
        for each in prepared:
            try:
                cold, used = cold_bytes(self._mount / each.path), _used_bytes(self._mount / each.path)
            except KernelProblem:
                continue
            found[each.cold], found[each.hot] = cold, max(used - cold, 0)
        return found

    def release(self) -> None:
        """As `ThreadedCollector.release`."""
        self._meminfo.close()


def scanned_of(watch: NodeWatch) -> list[Scanned]:
    """Return the pods and containers of a node."""
    return [*_pods(watch), *_containers(watch)]


def _pods(watch: NodeWatch) -> Iterable[Scanned]:
    for uid, cgroup_id in watch.index.pod_cgroups().items():
        if (path := watch.index.path(cgroup_id)) is not None:
            yield Scanned((POD_MEMORY_COLD, uid), (POD_MEMORY_WITH_HOT_PAGES, uid), path)


def _containers(watch: NodeWatch) -> Iterable[Scanned]:
    for each in containers_of(watch):
        container = each.container_id
        yield Scanned((CONTAINER_MEMORY_COLD, container), (CONTAINER_MEMORY_WITH_HOT_PAGES, container), each.path)


# As koordlet: everything on the LRU lists.
def _used_bytes(directory: Path) -> int:
    memory = CgroupMemory(directory, 1)
    try:
        stat = memory.read()
    finally:
        memory.close()
    anon = stat.inactive_anon_bytes + stat.active_anon_bytes
    return anon + stat.inactive_file_bytes + stat.active_file_bytes + stat.unevictable_bytes
