"""BEPageCacheSuppress in a running agent: each second it reads refaults and page cache of pods."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.attribution.index import CgroupIndex
from koordebpf.clock import Due
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.collect.memory.files import PodFiles, file_bytes, file_pages
from koordebpf.errors import KernelFileError
from koordebpf.kernel.cgroup.files import CgroupFile, file_name
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.proc.vmstat import VMSTAT, Vmstat
from koordebpf.policy.strategy import Decision
from koordebpf.report.pod_settings import PodLines, PodSetting
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import StrategyRunner
from koordebpf.slo.pods.qos import koord_qos, koord_qos_or_default
from koordebpf.state.view import NodeView
from koordebpf.strategies.page_cache.decide import BE_PAGE_CACHE_SUPPRESS, PageCacheDecision
from koordebpf.strategies.page_cache.values import CachePod, PageCacheMeasured, SensitivePod
from koordebpf.units import NS_PER_S, PAGE_BYTES, gained

_SENSITIVE = frozenset({"LSE", "LSR", "LS"})
_FILES = (
    CgroupFile.MEMORY_PAGECACHE_SIZE,
    CgroupFile.MEMORY_HIGH,
    CgroupFile.MEMORY_SOFT_LIMIT,
    CgroupFile.MEMORY_LIMIT,
)
log = logging.getLogger(__name__)


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
        self,
        index: CgroupIndex,
        known: ClusterView,
        hierarchy: MemoryHierarchy,
        least_per_s: int,
        vmstat: Path = VMSTAT,
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
            except (OSError, KernelFileError):  # it ended meanwhile
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
        if before is None:
            return True
        refaulted = gained(pages, before[1])  # not known: pods are measured
        return refaulted is not None and refaulted * NS_PER_S < self._least_per_s * (now_ns - before[0])

    def _support(self, path: str) -> tuple[str, ...]:
        directory = self._hierarchy.mount_point / path
        named = ((each, file_name(each, self._hierarchy.version)) for each in _FILES)
        return tuple(each.value for each, name in named if name and (directory / name).exists())


class PageCacheMetrics:
    """What was decided last, and how often limits failed. The loop writes, scrapes read."""

    def __init__(self) -> None:
        self._pods = 0
        self._bytes = 0
        self._per_s = 0.0
        self._failed = 0

    def record(self, made: PageCacheDecision) -> None:
        """Take over a decision."""
        self._pods, self._bytes, self._per_s = made.limited_pods, made.limited_bytes, made.refaults_per_s
        self._failed += made.failed

    def families(self) -> Iterator[Metric]:
        """Yield the metrics."""
        text = "Best-effort pods whose page cache is limited."
        yield GaugeMetricFamily("koordebpf_page_cache_limited_pods", text, self._pods)
        text = "Page cache that these pods may have."
        yield GaugeMetricFamily("koordebpf_page_cache_limit_bytes", text, self._bytes)
        text = "File pages that the worst latency-sensitive pod refaulted in a second, at the last look."
        yield GaugeMetricFamily("koordebpf_page_cache_refaults_per_second", text, self._per_s)
        text = "The same in bytes."
        yield GaugeMetricFamily("koordebpf_page_cache_refault_bytes_per_second", text, self._per_s * PAGE_BYTES)
        text = "Times that limits were lifted because refaults were no fewer with them."
        yield CounterMetricFamily("koordebpf_page_cache_failed_trials", text, self._failed)


class PageCacheRunner(StrategyRunner[PageCacheMeasured, PageCacheDecision]):
    """Logs when limits begin, fail and end, and why nothing can be limited."""

    def __init__(self, collector: PageCacheCollector, metrics: PageCacheMetrics) -> None:
        super().__init__("page cache", BE_PAGE_CACHE_SUPPRESS, PageCacheDecision, collector.measure)
        self._collector = collector
        self._metrics = metrics
        self._said = ""

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Take over whether pods are to be looked at in each second."""
        made = self.decided(decisions, view)
        if made is None or made.skipped == "not_due":
            return
        self._collector.is_active = bool(made.limited_pods or made.refaults_per_s)
        self._metrics.record(made)
        said = "no support" if made.skipped else "limited" if made.limited_pods else "failed" if made.failed else ""
        if said != self._said and (said or self._said == "limited"):
            log.info("page cache: %s", made.reason)
        self._said = said

    def families(self) -> Iterable[Metric]:
        """As `Runner.families`."""
        return self._metrics.families()

    def lines(self, measured: PageCacheMeasured, made: PageCacheDecision, view: NodeView) -> Mapping[str, PodLines]:
        """Return the limit of each pod; none while nothing is limited."""
        if not made.writes:
            return {}
        found = {}
        for uid, path in made.paths.items():
            own = (
                PodSetting(each.path, each.file.value, BE_PAGE_CACHE_SUPPRESS.gate, made.reason, each.value)
                for each in made.writes
                if each.path == path and isinstance(each.value, int)
            )
            found[uid] = PodLines(path, tuple(own))
        return found


def open_runner(node: NodeContext) -> PageCacheRunner:
    """Return it.

    Raises:  SupportError: no procfs.
    """
    watch = node.measuring.watch
    least_per_s = node.settings_of(BE_PAGE_CACHE_SUPPRESS).refault_rate
    collector = PageCacheCollector(watch.index, node.measuring.known, watch.scope.hierarchy, least_per_s)
    collector.due = node.due(collector.period_ns)
    collector.is_active = node.is_one_frame  # measured on a calm machine, too
    node.stack.callback(collector.close)
    return PageCacheRunner(collector, PageCacheMetrics())
