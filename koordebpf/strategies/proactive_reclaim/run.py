"""Proactive reclaim in a running agent: each few seconds it reads who may be trimmed, who stalls, and swap."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.act.reclaimer import Reclaimer, ReclaimJob
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.attribution.index import CgroupIndex
from koordebpf.clock import Due
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.collect.memory.files import PodFiles, anon_bytes, file_bytes
from koordebpf.errors import KernelFileError
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.host.uncharged import zram_use
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.proc.meminfo import Meminfo
from koordebpf.policy.strategy import Decision
from koordebpf.report.pod_settings import PodLines, PodSetting
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import StrategyRunner
from koordebpf.slo.pods.qos import koord_qos, koord_qos_or_default
from koordebpf.state.measured import Measured
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.view import NodeView
from koordebpf.strategies.proactive_reclaim.decide import PROACTIVE_RECLAIM, WHYS, ReclaimDecision
from koordebpf.strategies.proactive_reclaim.values import NO_RECLAIM_V1, ReclaimMeasured, SwapState, TrimmedPod
from koordebpf.units import NS_PER_S, format_bytes

RECLAIM_FILE = "memory.reclaim"
_SENSITIVE = frozenset({"LSE", "LSR", "LS"})
_RELEASE = re.compile(r"([0-9]+)\.([0-9]+)")
_TAKES_SWAPPINESS = (6, 11)
log = logging.getLogger(__name__)
_SAID_EACH_NS = 60 * NS_PER_S  # Why: one line a pod and minute says as much as ten


class ReclaimCollector(Closing):
    """Measures when it is due. Fds of pods that are gone are closed at the next look.

    Args:
        index: of the node's cgroups.
        known: of the cluster.
        hierarchy: of the memory controller.
        label: of pods that are trimmed beside best-effort ones; "": none.
        soft_limits: measure pods on cgroup v1, too, for their soft limits.
    """

    period_ns = 6 * NS_PER_S  # Why: senpai's interval; stalls of one interval say what the last step did

    def __init__(
        self,
        index: CgroupIndex,
        known: ClusterView,
        hierarchy: MemoryHierarchy,
        label: str = "",
        *,
        soft_limits: bool = False,
    ) -> None:
        self._known = known
        self._hierarchy = hierarchy
        self.mount_point = hierarchy.mount_point
        self._label = label
        self._soft_limits = soft_limits
        self.due = Due(self.period_ns)
        self._meminfo = Meminfo()
        self._files = PodFiles(index, known, hierarchy)
        self.takes_swappiness = _release() >= _TAKES_SWAPPINESS

    def measure(self, now_ns: int) -> ReclaimMeasured | None:
        """Return what is there now; None: it is not due, or the cluster is not known yet.

        Cost:    25 µs a pod that may be trimmed, 6 µs one that must not stall.
        """
        if not self._known.is_whole or not self.due.is_nearly_due(now_ns):
            return None
        self.due.done(now_ns)
        if self._hierarchy.version == 1 and not self._soft_limits:
            return ReclaimMeasured(now_ns, lacks=NO_RECLAIM_V1)
        trimmed: list[TrimmedPod] = []
        sensitive: dict[str, int] = {}
        seen: set[int] = set()
        for facts, cgroup_id, path in self._files.running():
            qos = koord_qos_or_default(facts.pod.metadata.labels, facts.kube_qos)
            if self._may_be_trimmed(facts):
                seen.add(cgroup_id)
                if not self._is_v1 and (lacks := self._lacks(path)):
                    return ReclaimMeasured(now_ns, lacks=lacks)
                if (pod := self._trimmed(facts.uid, cgroup_id, path)) is not None:
                    trimmed.append(pod)
            elif qos in _SENSITIVE and not self._is_v1:
                seen.add(cgroup_id)
                if (stalled_us := self._files.stalled_us(cgroup_id, path)) is not None:
                    sensitive[facts.uid] = stalled_us
        self._files.keep_only(seen)
        return ReclaimMeasured(
            now_ns,
            tuple(trimmed),
            sensitive,
            self._swap(),
            takes_swappiness=self.takes_swappiness,
            soft_limits=self._is_v1,
        )

    def close(self) -> None:
        """Close every fd."""
        self._files.close()
        self._meminfo.close()

    @property
    def _is_v1(self) -> bool:
        return self._hierarchy.version == 1

    # As eviction: by the label, which a pod of no class does not have.
    def _may_be_trimmed(self, facts: PodFacts) -> bool:
        labels = facts.pod.metadata.labels or {}
        return koord_qos(labels) == "BE" or bool(self._label and labels.get(self._label) == "true")

    def _lacks(self, path: str) -> str:
        directory = self._hierarchy.mount_point / path
        if not (directory / RECLAIM_FILE).exists() and directory.is_dir():
            return f"this kernel has no {RECLAIM_FILE}, which came with Linux 5.19"
        if not (directory / "memory.pressure").exists() and directory.is_dir():
            return "this kernel accounts no pressure (psi=0): whether it hurts could not be seen"
        return ""

    def _trimmed(self, uid: str, cgroup_id: int, path: str) -> TrimmedPod | None:
        stalled_us = 0 if self._is_v1 else self._files.stalled_us(cgroup_id, path)
        if stalled_us is None:
            return None
        try:
            stat = self._files.stat(cgroup_id, path)
            usage_bytes, rows = stat.usage_bytes(), stat.rows()
        except (OSError, KernelFileError):  # it ended meanwhile
            return None
        return TrimmedPod(
            uid,
            cgroup_id,
            path,
            usage_bytes,
            file_bytes(rows),
            anon_bytes(rows),
            stalled_us,
            sum(count for name, count in rows.items() if name.startswith(b"workingset_refault")),
        )

    def _swap(self) -> SwapState:
        try:
            values = self._meminfo.read()
        except KernelFileError:  # its reader counts it; as without swap no anonymous memory is reclaimed
            return SwapState(0, 0, *zram_use())
        return SwapState(values.swap_total_bytes or 0, values.swap_free_bytes or 0, *zram_use())


def _release() -> tuple[int, int]:
    match = _RELEASE.match(os.uname().release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


class ReclaimMetrics:
    """What was taken, and whom it has hurt. The loop writes, scrapes read."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()  # bytes by result
        self._hurt = 0
        self._held = 0
        self._pods = 0
        self._whys: Counter[str] = Counter()  # pods by why so much is taken from them

    def record(self, made: ReclaimDecision) -> None:
        """Take over a decision."""
        self._hurt += len(made.hurt)
        self._held += made.held_by is not None
        self._pods = len(made.state.pods)
        self._whys = Counter(made.whys.values())

    def count(self, result: str, size_bytes: int) -> None:
        """Count what became of one job."""
        self._taken[result] += size_bytes

    def families(self) -> Iterator[Metric]:
        """Yield the metrics."""
        taken = CounterMetricFamily(
            "koordebpf_proactive_reclaim_bytes", "Memory that pods were asked to give, by result.", labels=["result"]
        )
        for result, size_bytes in sorted(self._taken.copy().items()):
            taken.add_metric([result], size_bytes)
        yield taken
        text = "Times that a pod stalled for it, or its memory came back."
        yield CounterMetricFamily("koordebpf_proactive_reclaim_hurt_pods", text, self._hurt)
        text = "Rounds in which nothing was taken because a latency-sensitive pod stalled."
        yield CounterMetricFamily("koordebpf_proactive_reclaim_held_rounds", text, self._held)
        yield GaugeMetricFamily("koordebpf_proactive_reclaim_pods", "Pods that may be trimmed.", self._pods)
        pods = GaugeMetricFamily(
            "koordebpf_proactive_reclaim_pods_by_reason", "The same by what was decided of them.", labels=["reason"]
        )
        whys = self._whys.copy()
        for why in WHYS:
            pods.add_metric([why], whys[why])
        yield pods


class _Taken(msgspec.Struct):
    """What was taken from a pod since `since_ns`, and its last job."""

    since_ns: int
    last: FileChange
    size_bytes: int = 0
    jobs: int = 0


class ReclaimRunner(StrategyRunner[ReclaimMeasured, ReclaimDecision]):
    """One thread writes memory.reclaim, since a write returns when the memory is back.

    Args:
        collector: of what is decided from.
        index: which directory is whose.
        reclaimer: writes; None: a dry run.
        metrics: to be kept up to date.
        report: gets one change a pod and minute.
    """

    def __init__(
        self,
        collector: ReclaimCollector,
        index: CgroupIndex,
        reclaimer: Reclaimer | None,
        metrics: ReclaimMetrics,
        report: Callable[[FileChange], None],
    ) -> None:
        super().__init__("proactive reclaim", PROACTIVE_RECLAIM, ReclaimDecision, collector.measure)
        self._collector = collector
        self._index = index
        self._reclaimer = reclaimer
        self._metrics = metrics
        self._report = report
        self._waiting = 0  # jobs
        self._taken: dict[str, _Taken] = {}  # by path of the file
        self._reason = ""

    def measure(self, measured: Measured, *, is_sample: bool) -> Measured:
        """As `Runner.measure`. While the last jobs are not done nothing is measured: its stalls are theirs, too."""
        self._drain_done(measured.now_ns)
        return measured if self._waiting else super().measure(measured, is_sample=is_sample)

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Ask the kernel for what was decided; in a dry run it is counted only."""
        made = self.decided(decisions, view)
        if made is None or made.skipped == "not_due":
            return
        self._report_decision(made)
        self._metrics.record(made)
        for job in self._jobs(made, view.now_ns):
            if self._reclaimer is None:
                self._count(job.change(WriteResult.DRY_RUN), job.size_bytes, view.now_ns)
                self._metrics.count(WriteResult.DRY_RUN.value, job.size_bytes)
            else:
                self._waiting += 1
                self._reclaimer.submit(job)
        self._flush(view.now_ns)

    def families(self) -> Iterable[Metric]:
        """As `Runner.families`."""
        return self._metrics.families()

    def lines(self, measured: ReclaimMeasured, made: ReclaimDecision, view: NodeView) -> Mapping[str, PodLines]:
        """Return how much is taken from each pod, and why nothing is."""
        sizes = {each.uid: each.size_bytes for each in made.orders}
        found = {}
        for pod in measured.pods:
            if (why := made.whys.get(pod.uid)) is None:
                continue
            memory = made.state.pods.get(pod.uid)
            hurts = memory.hurts if memory else 0
            halved = f"; halved {hurts} times, because it stalled or memory came back" if hurts else ""
            taken = f"{format_bytes(sizes[pod.uid])} each 6 s" if pod.uid in sizes else "nothing"
            line = PodSetting(pod.path, "memory.reclaim", PROACTIVE_RECLAIM.gate, f"{WHYS[why]}{halved}", taken)
            found[pod.uid] = PodLines(pod.path, (line,))
        return found

    def close(self) -> None:
        """End the thread and close files."""
        if self._reclaimer is not None:
            self._reclaimer.close()
        self._collector.close()

    def _jobs(self, made: ReclaimDecision, now_ns: int) -> list[ReclaimJob]:
        mount_point, jobs = self._collector.mount_point, list[ReclaimJob]()
        for order in made.orders:
            names = self._index.names_to_act_on(order.uid)
            if names:
                path = mount_point / order.path
                jobs.append(
                    ReclaimJob(path, order.cgroup_id, order.size_bytes, made.reason, now_ns, names, order.swappiness)
                )
        return jobs

    def _drain_done(self, now_ns: int) -> None:
        if self._reclaimer is None:
            return
        failures: list[str] = []
        for change in self._reclaimer.drain():
            self._waiting -= 1
            if change.result is WriteResult.UNSUPPORTED:
                self._collector.takes_swappiness = False
            if change.result is WriteResult.WRITTEN:
                self._count(change, int(change.new), now_ns)
            elif change.result is not WriteResult.GONE:
                failures.append(f"{change.path}: {change.detail}")
            self._metrics.count(change.result.value, int(change.new))
        self.report_failures(failures, now_ns)

    def _count(self, change: FileChange, size_bytes: int, now_ns: int) -> None:
        taken = self._taken.setdefault(change.path, _Taken(now_ns, change))
        taken.last = change
        taken.size_bytes += size_bytes
        taken.jobs += 1

    def _flush(self, now_ns: int) -> None:
        for path, taken in list(self._taken.items()):
            if now_ns - taken.since_ns >= _SAID_EACH_NS:
                del self._taken[path]
                said = f"{format_bytes(taken.size_bytes)} in {taken.jobs} steps"
                self._report(replace(taken.last, detail=said, owner=PROACTIVE_RECLAIM.name))

    def _report_decision(self, made: ReclaimDecision) -> None:
        reason = made.reason if made.skipped or made.held_by else ""
        if reason and reason != self._reason:
            log.info("proactive reclaim: %s", reason)
        self._reason = reason


def open_runner(node: NodeContext) -> ReclaimRunner:
    """Return it; in a dry run it takes nothing."""
    watch = node.measuring.watch
    settings = node.settings_of(PROACTIVE_RECLAIM)
    collector = ReclaimCollector(
        watch.index,
        node.measuring.known,
        watch.scope.hierarchy,
        settings.label,
        soft_limits=settings.soft_limits or node.is_one_frame,
    )
    collector.due = node.due(collector.period_ns)
    reclaimer = Reclaimer(node.loop.wake, is_urgent=False) if node.folder is not None else None
    runner = ReclaimRunner(collector, watch.index, reclaimer, ReclaimMetrics(), node.report)
    node.stack.callback(runner.close)
    return runner
