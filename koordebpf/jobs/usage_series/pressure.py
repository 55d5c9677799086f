"""PSI of pods and containers each ten seconds: by their pressure files, or derived from stalls where there are none."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.scope import NodeScope
from koordebpf.errors import KernelProblem
from koordebpf.jobs.usage_series.groups import Samples, UsageGroup, UsageGroups
from koordebpf.kernel.proc.psi import PressureFile
from koordebpf.runner.context import NodeContext
from koordebpf.state.measured import StallShares
from koordebpf.state.series.kinds import CONTAINER_PSI, POD_PSI, SeriesKey
from koordebpf.state.series.store import EVERY_NS, NodeSeries
from koordebpf.units import NS_PER_S

log = logging.getLogger(__name__)

EVERY_PSI_NS = 10 * NS_PER_S  # koordlet's psi-collector-interval
_PASSES = EVERY_PSI_NS // EVERY_NS
# Why 64: a pass then takes 1 ms. With more than 640 cgroups a turn takes longer than ten seconds.
_MOST_A_PASS = 64
# koordlet's names of them, and the kernel's files.
_FILES: Mapping[str, str] = {"cpu": "cpu.pressure", "mem": "memory.pressure", "io": "io.pressure"}
_PRECISION = "10"

_Value = tuple[str, str, float]  # resource, degree, percent of the last ten seconds


def open_job(node: NodeContext) -> PressureCollector:
    """Return the collector."""
    watch, history = node.measuring.watch, node.measuring.history
    reader: PressureReader
    if watch.scope.hierarchy.version == 2:
        reader = FilePressure(watch.scope)
    else:
        reader = DerivedPressure(
            lambda uid: history.shares_of_pod(uid, time.monotonic_ns()),
            lambda cgroup_id: history.shares_of(cgroup_id, time.monotonic_ns()),
            lambda: watch.quality.stalls == "timed",
        )
    log.info("pressure of pods and containers is measured by %s", reader.how)
    return PressureCollector(watch.scope, watch.index, reader)


class PressureReader(Protocol):
    """Gives the pressure of one cgroup. `how`: in words."""

    @property
    def how(self) -> str: ...  # noqa: D102 - as above

    def read(self, group: UsageGroup) -> list[_Value]:
        """Return what there is of it; nothing where it is gone."""

    def keep_only(self, groups: Mapping[int, UsageGroup]) -> None:
        """Close what is of others."""

    def close(self) -> None:
        """Close everything."""


class FilePressure:
    """cpu.pressure, memory.pressure and io.pressure through kept fds. cpu has the row `full` since Linux 5.13."""

    how = "their pressure files"

    def __init__(self, scope: NodeScope) -> None:
        self._mount_point = scope.hierarchy.mount_point
        self._files: dict[int, tuple[str, dict[str, PressureFile]]] = {}

    def read(self, group: UsageGroup) -> list[_Value]:
        """Return `some` and `full` of each resource. A file that is missing or unreadable leaves its resource out."""
        path, files = self._files.get(group.cgroup_id) or ("", {})
        if path != group.path:
            self._close(group.cgroup_id)
            files = {}
            self._files[group.cgroup_id] = group.path, files
        found: list[_Value] = []
        for resource, name in _FILES.items():
            try:
                file = files.get(resource)
                if file is None:
                    file = files[resource] = PressureFile(self._mount_point / group.path / name)
                read = file.read()
            except KernelProblem:
                if (gone := files.pop(resource, None)) is not None:
                    gone.close()
                continue
            found.append((resource, "some", read.some.avg10))
            if read.full is not None:
                found.append((resource, "full", read.full.avg10))
        return found

    def keep_only(self, groups: Mapping[int, UsageGroup]) -> None:
        """Close the files of others."""
        for group in self._files.keys() - groups.keys():
            self._close(group)

    def _close(self, group: int) -> None:
        for file in self._files.pop(group, ("", {}))[1].values():
            file.close()

    def close(self) -> None:
        """Close every fd."""
        self.keep_only({})


class DerivedPressure:
    """Shares of time out of stall records, of memory alone, and said so in psi_degree: `derived-some`, `derived-full`.

    Args:
        of_pod: gives the shares of a pod by uid; None: it never stalled.
        of_container: the same by cgroup id.
        are_timed: whether stalls are timed here at all.
    """

    how = "their stalls for memory alone: cgroup v1 has no pressure files"

    def __init__(
        self,
        of_pod: Callable[[str], StallShares | None],
        of_container: Callable[[int], StallShares | None],
        are_timed: Callable[[], bool],
    ) -> None:
        self._of_pod = of_pod
        self._of_container = of_container
        self._are_timed = are_timed

    def read(self, group: UsageGroup) -> list[_Value]:
        """Return the shares; what never stalled has 0. Nothing where stalls are not timed."""
        if not self._are_timed():
            return []
        shares = self._of_pod(group.name) if group.kind == "pod" else self._of_container(group.cgroup_id)
        if shares is None:
            return [("mem", "derived-some", 0.0)]
        found = [("mem", "derived-some", shares.some.avg10)]
        if shares.full is not None:
            found.append(("mem", "derived-full", shares.full.avg10))
        return found

    def keep_only(self, groups: Mapping[int, UsageGroup]) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is open."""


class PressureCollector:
    """Reads some of the cgroups at each pass, and appends all of one turn at its end.

    Source:  koordinator pkg/koordlet/metricsadvisor/collectors/performance/psi_collector.go: avg10 alone is kept.
    Cost:    18 µs a cgroup and turn by files.
    """

    name = "pressure of pods and containers"
    period_ns = EVERY_NS

    def __init__(self, scope: NodeScope, index: CgroupIndex, reader: PressureReader) -> None:
        self._groups = UsageGroups(scope, index)
        self._reader = reader
        self._turn: list[UsageGroup] = []
        self._share = 0
        self._next_ns = 0
        self._samples: Samples = {}

    def collect(self, now_ns: int, into: NodeSeries) -> None:
        """Read those whose turn it is."""
        if not self._turn:
            if now_ns < self._next_ns:
                return
            self._begin(now_ns)
        for group in self._due():
            keys = _keys(group)
            self._samples |= {
                (*keys, resource, _PRECISION, degree): value for resource, degree, value in self._reader.read(group)
            }
        if not self._turn:
            into.append_round(now_ns, self._samples)
            self._samples = {}

    def _begin(self, now_ns: int) -> None:
        self._next_ns = now_ns + EVERY_PSI_NS - EVERY_NS // 2  # a pass some milliseconds early counts
        if self._groups.refresh({}):
            self._reader.keep_only(self._groups.by_id)
        self._turn = [each for each in self._groups.by_id.values() if each.kind in ("pod", "container")]
        self._share = min(-(-len(self._turn) // _PASSES), _MOST_A_PASS)

    def _due(self) -> Iterator[UsageGroup]:
        for _ in range(min(self._share, len(self._turn))):
            yield self._turn.pop()

    def close(self) -> None:
        """Close everything."""
        self._reader.close()


def _keys(group: UsageGroup) -> SeriesKey:
    return (POD_PSI, group.name) if group.kind == "pod" else (CONTAINER_PSI, group.pod_uid, group.name)
