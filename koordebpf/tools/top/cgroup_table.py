"""Every container, or every cgroup, as a row: for a person who looks closer than at pods. Reads, decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.memory.samples import memcg_samples
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.errors import CgroupGone, SupportError
from koordebpf.events.records import CgroupStall, MemcgSample
from koordebpf.kernel.proc.psi import PressureFile, PressureLine
from koordebpf.report.top.choice import Level
from koordebpf.report.top.values import TopRow, short_qos, stalls_of
from koordebpf.report.trace.record_line import owner_text
from koordebpf.state.forecast import GrowthHistory, time_to
from koordebpf.state.measured import PsiLine, StallShares
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.series.growth import GrowthTable
from koordebpf.state.stalls.shares import ShareTable
from koordebpf.state.stalls.windows import StallWindow
from koordebpf.units import NS_PER_MS, NS_PER_S

_GROWTH_NS = 2 * NS_PER_S  # looked back: a person reads once a second


class CgroupTable:
    """Memory, growth and stall of every cgroup below the node, one `sample` after the other.

    Cost:    a scan, and on cgroup v2 one file a row that is shown.
    """

    def __init__(self, watch: NodeWatch, collector: MemoryCollector) -> None:
        self._watch = watch
        self._collector = collector
        self._is_v2 = watch.scope.hierarchy.version == 2
        scope = watch.scope
        self._node_path = scope.path.relative_to(scope.hierarchy.mount_point).as_posix()
        self._samples: dict[int, MemcgSample] = {}
        self._growth: GrowthTable[int] = GrowthTable(window_ns=_GROWTH_NS)
        self._history: GrowthHistory[int] = GrowthHistory(shortest_ns=250 * NS_PER_MS)
        self._grows: dict[int, float | None] = {}
        self._stalls = StallWindow()
        self._shares = ShareTable()
        self._now_ns = 0

    def sample(self, now_ns: int, stalls: Sequence[CgroupStall]) -> None:
        """Measure everything; `stalls` are the backend's sums as they are now."""
        self._now_ns = now_ns
        self._samples = {each.cgroup_id: each for each in memcg_samples(self._watch)}
        self._grows = {
            each.cgroup_id: self._growth.push(each.cgroup_id, now_ns, _kept_bytes(each))
            for each in self._samples.values()
        }
        self._growth.keep_only(self._samples)
        self._history.push(now_ns, {each.cgroup_id: _kept_bytes(each) for each in self._samples.values()})
        self._stalls.push(now_ns, stalls, str)
        self._shares.push(now_ns, stalls, self._collector.task_counts(self._shares.stalled_since(stalls)))

    def rows(self, level: Level, pods: Sequence[PodFacts]) -> list[TopRow]:
        """Return a row for each cgroup of that level as they were sampled last; `pods` tell what QoS theirs have."""
        stalls = self._stalls.rows()
        koord_qos = {each.uid: each.koord_qos for each in pods}
        found = []
        for cgroup_id, sample in self._samples.items():
            owner = self._watch.index.owner(cgroup_id)
            if level == "container" and (owner is None or owner.kind not in (OwnerKind.CONTAINER, OwnerKind.SANDBOX)):
                continue
            limit = sample.max_bytes
            room = None if limit is None else limit - _kept_bytes(sample)
            found.append(
                TopRow(
                    self._name(owner, cgroup_id),
                    short_qos(koord_qos.get(owner.pod_uid or "", ""), owner.kube_qos) if owner else "",
                    None,
                    cgroup_id,
                    _process_bytes(sample) + _kernel_bytes(sample),
                    sample.usage_bytes,
                    sample.inactive_file_bytes + sample.active_file_bytes,
                    limit,
                    self._grows.get(cgroup_id),
                    *stalls_of(stalls.get(str(cgroup_id))),
                    self._shares_of(cgroup_id, owner),
                    None if room is None else time_to(room, self._history.growths(cgroup_id)),
                    _kernel_bytes(sample),
                )
            )
        return found

    def _name(self, owner: Owner | None, cgroup_id: int) -> str:
        if cgroup_id == self._watch.scope.root_id:
            return "the node"
        if owner is None or owner.pod_uid or owner.host_application:
            name = owner_text(owner, cgroup_id)
            if owner is not None and owner.kind in (OwnerKind.CONTAINER, OwnerKind.NESTED) and not owner.container_name:
                return f"{name}[{owner.path.rpartition('/')[2][:12]}]"  # else all of a pod would be called the same
            return name
        return owner.path.removeprefix(f"{self._node_path}/") or "/"

    def _shares_of(self, cgroup_id: int, owner: Owner | None) -> StallShares | None:
        if self._is_v2 and owner is not None:
            try:
                with PressureFile(self._watch.scope.hierarchy.mount_point / owner.path / "memory.pressure") as file:
                    read = file.read()
                return StallShares(_line(read.some), _line(read.full) if read.full else None, derived=False)
            except (CgroupGone, SupportError):
                pass  # psi=0: as on cgroup v1
        return self._shares.shares(cgroup_id, self._now_ns)


def _kernel_bytes(each: MemcgSample) -> int:
    # What is charged and on no list, reclaimable slab included.
    return max(each.usage_bytes - each.inactive_file_bytes - each.active_file_bytes - _process_bytes(each), 0)


def _process_bytes(each: MemcgSample) -> int:
    return each.inactive_anon_bytes + each.active_anon_bytes + each.unevictable_bytes


def _kept_bytes(each: MemcgSample) -> int:
    # What a limit cannot take back from it: usage without the page cache.
    return max(each.usage_bytes - each.inactive_file_bytes - each.active_file_bytes, 0)


def _line(line: PressureLine) -> PsiLine:
    return PsiLine(line.avg10, line.avg60, line.avg300, line.total_us)
