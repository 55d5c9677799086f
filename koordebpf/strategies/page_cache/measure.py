"""Reads for BEPageCacheSuppress, each second: refaults of latency-sensitive pods, page cache of best-effort ones."""

from __future__ import annotations

from pathlib import Path

from koordebpf.attribution.index import CgroupIndex
from koordebpf.clock import Due
from koordebpf.collect.cluster_view import Known
from koordebpf.collect.memory.files import PodFiles, file_bytes, file_pages
from koordebpf.kernel.cgroup.files import CgroupFile, file_name
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.proc.vmstat import VMSTAT, Vmstat
from koordebpf.slo.pods.qos import koord_qos, koord_qos_or_default
from koordebpf.strategies.page_cache.values import CachePod, PageCacheMeasured, SensitivePod
from koordebpf.units import NS_PER_S

_SENSITIVE = frozenset({"LSE", "LSR", "LS"})
_FILES = (
    CgroupFile.MEMORY_PAGECACHE_SIZE,
    CgroupFile.MEMORY_HIGH,
    CgroupFile.MEMORY_SOFT_LIMIT,
    CgroupFile.MEMORY_LIMIT,
)


class PageCacheCollector(Closing):
    """Measures when it is due. Fds of pods that are gone are closed at the next look.

    The whole machine refaults at least as much as any pod: while that is little, and nothing is limited, no pod is
    looked at.

    Args:
        index: of the node's cgroups.
        known: of the cluster.
        hierarchy: of the memory controller.
        least_per_s: pages that a latency-sensitive pod refaults before anything is limited.
        vmstat: the machine's counters.
    """

    period_ns = NS_PER_S  # Why: a limit that is followed less often leaves a pod less room for what it allocates

    def __init__(
        self, index: CgroupIndex, known: Known, hierarchy: MemoryHierarchy, least_per_s: int, vmstat: Path = VMSTAT
    ) -> None:
        self.is_active = False  # something is limited, or a pod refaulted at the last look
        self._known = known
        self._hierarchy = hierarchy
        self._least_per_s = least_per_s
        self.due = Due(self.period_ns)
        self._vmstat = Vmstat(vmstat)
        self._before: tuple[int, int] | None = None  # when, and the machine's refaults
        self._files = PodFiles(index, known, hierarchy)

    def measure(self, now_ns: int) -> PageCacheMeasured | None:
        """Return what is there now; None: it is not due, the machine is calm, or the cluster is not known yet.

        Cost:    30 µs while the machine is calm; else 25 µs a pod.
        """
        if not self._known.is_whole or not self.due.is_nearly_due(now_ns):
            return None
        self.due.done(now_ns)
        if self._is_calm(now_ns) and not self.is_active:
            return None
        pods: list[CachePod] = []
        sensitive: dict[str, SensitivePod] = {}
        files: tuple[str, ...] = ()
        seen: set[int] = set()
        for facts, cgroup_id, path in self._files.running():
            is_be = koord_qos(facts.pod.metadata.labels or {}) == "BE"
            if not is_be and koord_qos_or_default(facts.pod.metadata.labels, facts.kube_qos) not in _SENSITIVE:
                continue
            seen.add(cgroup_id)
            try:
                stat = self._files.stat(cgroup_id, path)
                rows = stat.rows()
                if not is_be:
                    sensitive[facts.uid] = SensitivePod(file_pages(rows, b"workingset_refault") or 0, file_bytes(rows))
                    continue
                usage_bytes = stat.usage_bytes()
            except (OSError, ValueError):  # it ended meanwhile
                continue
            files = files or self._support(path)
            pods.append(
                CachePod(
                    facts.uid,
                    path,
                    usage_bytes,
                    file_bytes(rows),
                    file_pages(rows, b"workingset_activate"),
                    # None where the kernel does not account it: the pod's refaults count alone then.
                    self._files.stalled_us(cgroup_id, path) if self._hierarchy.version == 2 else None,
                )
            )
        self._files.keep_only(seen)
        return PageCacheMeasured(now_ns, tuple(pods), sensitive, files)

    def close(self) -> None:
        """Close every fd."""
        self._files.close()
        self._vmstat.close()

    def _is_calm(self, now_ns: int) -> bool:
        pages, before = self._vmstat.refaulted_pages(), self._before
        self._before = now_ns, pages
        return before is None or (pages - before[1]) * NS_PER_S < self._least_per_s * (now_ns - before[0])

    def _support(self, path: str) -> tuple[str, ...]:
        directory = self._hierarchy.mount_point / path
        named = ((each, file_name(each, self._hierarchy.version)) for each in _FILES)
        return tuple(each.value for each, name in named if name and (directory / name).exists())
