"""Memory of cgroups out of the scan that the agent makes anyway; of containers out of files where there is no scan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.scope import NodeScope
from koordebpf.collect.usage.groups import InTurn, UsageGroup
from koordebpf.errors import CgroupGone, KernelFileError, SupportError
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, CgroupMemoryStat
from koordebpf.state.stalls.sums import ScanSums
from koordebpf.units import NS_PER_S

OUTDATED_NS = 10 * NS_PER_S  # koordlet's collect-sys-metric-outdated-interval
# Why 32: 330 containers are read within eleven seconds, at 15 µs each.
_FILES_A_PASS = 32


class GroupMemory:
    """`held`: anonymous and unevictable memory by cgroup id; `cached`: that with page cache, where it is asked for.

    Of an application the latter is all that is charged to it, as in koordlet.

    Attributes:
        with_page_cache: whether it is asked for.
    """

    def __init__(self, scope: NodeScope, collector: MemoryCollector, *, with_page_cache: bool) -> None:
        self.held: dict[int, int] = {}
        self.cached: dict[int, int] = {}
        self._collector = collector
        self.with_page_cache = with_page_cache
        self._groups: Mapping[int, UsageGroup] = {}
        self._files = None if collector.can_scan else _ContainerFiles(scope)
        self._rows: list[tuple[int, range]] = []
        self._seen: tuple[int, int] = (-1, 0)  # the measurement that was taken over, and when
        self._sums: ScanSums | None = None
        self._layout: object = None

    def watch(self, groups: Mapping[int, UsageGroup]) -> None:
        """Look for these, by cgroup id, and no others."""
        self._groups = groups
        self._layout = None
        if self._files is not None:
            self._files.watch(groups)

    def look(self, now_ns: int) -> bool:
        """Take over the last full measurement; return whether it is not older than `OUTDATED_NS`."""
        taken, sums = self._collector.sums
        if sums is None:
            return False
        if taken != self._seen[0]:
            self._seen = taken, now_ns
        if sums is not self._sums or sums.layout is not self._layout:
            self._take(sums)
        if self._files is not None:
            self._read_containers(self._files)
        return now_ns - self._seen[1] <= OUTDATED_NS

    def _take(self, sums: ScanSums) -> None:
        if sums.layout is not self._layout:
            self._rows = [(group, rows) for group in self._groups if (rows := sums.rows_of(group)) is not None]
        self._sums, self._layout = sums, sums.layout
        self.held = self._summed(sums.held_bytes())
        if self.with_page_cache:
            self.cached = self._summed(sums.held_bytes(page_cache=True))
            for group, its in self._groups.items():
                if its.kind == "host_application" and (usage := sums.usage_bytes(group)) is not None:
                    self.cached[group] = usage

    def _summed(self, column: list[int]) -> dict[int, int]:
        return {
            group: column[rows.start] if rows.stop - rows.start == 1 else sum(column[rows.start : rows.stop])
            for group, rows in self._rows
        }

    def _read_containers(self, files: _ContainerFiles) -> None:
        for group, stat in files.read():
            held = stat.inactive_anon_bytes + stat.active_anon_bytes + stat.unevictable_bytes
            self.held[group] = held
            if self.with_page_cache:
                is_whole = self._groups[group].kind == "host_application"
                file = stat.inactive_file_bytes + stat.active_file_bytes
                self.cached[group] = stat.usage_bytes if is_whole else held + file

    def close(self) -> None:
        """Close every fd."""
        if self._files is not None:
            self._files.close()


class _ContainerFiles:
    """memory.stat of containers and applications, some in turn. What was read stays until its next turn."""

    def __init__(self, scope: NodeScope) -> None:
        self._hierarchy = scope.hierarchy
        self._files: dict[int, CgroupMemory] = {}
        self._turn = InTurn(_FILES_A_PASS)
        self._last: dict[int, CgroupMemoryStat] = {}

    def watch(self, groups: Mapping[int, UsageGroup]) -> None:
        wanted = {group for group, its in groups.items() if its.kind in ("container", "host_application")}
        for group in self._files.keys() - wanted:
            self._files.pop(group).close()
            self._last.pop(group, None)
        for group in wanted - self._files.keys():
            path = self._hierarchy.mount_point / groups[group].path
            self._files[group] = CgroupMemory(path, self._hierarchy.version)

    def read(self) -> Iterator[tuple[int, CgroupMemoryStat]]:
        for group in self._turn.next(self._files):
            files = self._files[group]
            try:
                self._last[group] = files.read()
            except (CgroupGone, SupportError, KernelFileError):
                files.close()
                self._last.pop(group, None)
        return iter(self._last.items())

    def close(self) -> None:
        for each in self._files.values():
            each.close()
        self._files.clear()
