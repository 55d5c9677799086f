"""Holds best-effort pods to the CPU that others leave: measures, writes what `policy.suppress` chose, remembers."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path

import msgspec

from koordebpf.act.writer.owners import SUPPRESS
from koordebpf.act.writer.restore import WAIT_S
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.agent.lifecycle.handover import KEPT, can_wait, leave_waiting, tell_left
from koordebpf.agent.lifecycle.node_lock import is_awaited
from koordebpf.collect.cluster_view import Known
from koordebpf.collect.cpu.collector import BurstLook, CpuCollector
from koordebpf.collect.cpu.kubelet_cpus import KubeletCpus
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.errors import CgroupGone, KoordebpfError
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.io.kept_file import KeptFile
from koordebpf.policy.reconcile.values import DesiredState
from koordebpf.policy.suppress.amount import BeAmount
from koordebpf.policy.suppress.kept import KeptSuppression, adopted
from koordebpf.policy.suppress.round import SuppressPlan
from koordebpf.policy.suppress.settings import SuppressSettings
from koordebpf.report.log.problems import ProblemLog
from koordebpf.slo.strategies.cpu_threshold_rules import cpu_window_s
from koordebpf.state.cpu.best_effort import be_request_millicpu
from koordebpf.state.cpu.measured import CpuMeasured
from koordebpf.state.series.node import NodeSeries
from koordebpf.state.suppression import SuppressState
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_S

log = logging.getLogger(__name__)

_AS_BEFORE = "as the agent before this one held it"


class Suppression:
    """One node's suppression, from counters to files and back.

    Args:
        writer: of the node.
        folder: of the one agent that acts on the node: what a successor continues from. None: dry run.
        burst_window_ns: over which bursts of others are measured; None: they are not.
    Raises:  SupportError: no sysfs or procfs.
    """

    def __init__(
        self,
        watch: NodeWatch,
        settings: SuppressSettings,
        writer: CgroupWriter,
        series: NodeSeries,
        folder: Path | None,
        burst_window_ns: int | None = None,
    ) -> None:
        self._settings = settings
        self._index = watch.index
        self._seen: tuple[int | None, frozenset[int]] = (None, frozenset())  # version; cgroups of Guaranteed pods
        self._kept = KeptFile(folder / KEPT if folder else None, "a successor begins from nothing")
        self._kubelet = KubeletCpus()
        self._collector = CpuCollector(
            find_controllers(),
            node_path=watch.scope.node_path,
            burst_window_ns=burst_window_ns,
            kubelet=self._kubelet.read,
        )
        self._series = series
        self._writer = writer
        kept, now_s = _read(self._kept), time.time()
        self._last = KeptSuppression(adopted(kept, now_s, settings.keep_s), now_s)  # as if this agent ended now
        self._is_absent = False
        self._problems = ProblemLog()
        self.amount: BeAmount | None = None  # of the last round; None: it suppressed no pod
        if kept is not None and kept.is_fresh(now_s, settings.keep_s):
            self._hold_again(kept.desired)

    def look(self, now_ns: int) -> BurstLook | None:
        """Return who uses the CPUs now; None where none is measured."""
        try:
            return None if self._is_absent else self._collector.look(now_ns)
        except KoordebpfError as error:
            log.warning("the CPUs were not looked at: %s", error)
            return None

    def measure(self, now_ns: int, known: Known, view: NodeView | None, *, each_pod: bool = True) -> CpuMeasured | None:
        """Return the node's CPUs; None where the node has no CPU cgroup, as one of memory alone, or not yet.

        Args:
            now_ns: CLOCK_MONOTONIC.
            known: of the cluster.
            view: the last one, for what best-effort pods ask for.
            each_pod: what each pod uses is asked for.
        """
        if self._is_absent:
            return None
        if self._index.version != self._seen[0]:
            owners = [owner for each in self._index if (owner := self._index.owner(each)) is not None]
            self._collector.watch(owners)
            guaranteed = frozenset(owner.cgroup_id for owner in owners if owner.kube_qos == "Guaranteed")
            self._seen = (self._index.version, guaranteed)
        self._kubelet.note(known.facts, self._seen[1])
        if self._kubelet.is_awaited:
            return None  # a first round that takes policy static for none would stand in kubelet's way
        try:
            return self._collector.collect(
                now_ns,
                self._series,
                be_request_millicpu=None if view is None else be_request_millicpu(view.pods),
                evict_window_ns=cpu_window_s(known.strategy) * NS_PER_S,
                each_pod=each_pod,
            )
        except CgroupGone as gone:
            self._is_absent = True
            log.info("no CPU is measured or held: the node has no directory %s", gone.path)
        except KoordebpfError as error:
            log.warning("the CPUs were not measured: %s", error)
        return None

    def carry_out(self, plan: SuppressPlan, view: NodeView) -> None:
        """Write what a decision on this view wants; where it skipped, what was written before stays."""
        problems = view.cpu.placement.problems if view.cpu else ()
        sentences = [f"what cannot be read binds no CPU: {problem}" for problem in problems]
        self._problems.report({"CPU annotations": sentences}, view.now_ns)
        self._problems.flush(view.now_ns)
        self.amount = plan.amount
        if plan.skipped is None:
            if (plan.next.memory_hold is None) != (self.state.memory_hold is None):
                log.info("%s", plan.reason)
            self._writer.apply(plan.desired, view.now_ns, SUPPRESS)
            self._last = msgspec.structs.replace(self._last, state=plan.next, desired=plan.desired)

    @property
    def state(self) -> SuppressState:
        """What the next decision starts from."""
        return self._last.state

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Attempts to write since the start, by file and result."""
        return {(file, result.value): count for (file, result), count in self._writer.counts_of(SUPPRESS).items()}

    def close(self) -> None:
        """Leave the files to an agent that stands by; else as configured: restored, or left to a successor."""
        try:
            waits = self._settings.at_exit == "keep" and can_wait()
            path = self._kept.path
            if path is not None and (waits or is_awaited(path.parent)):
                self._keep(path, waits=waits)
            else:
                self._restore()
        except (KoordebpfError, OSError) as error:
            log.error("what best-effort pods may use stays as it is: %s. Run: koordebpf restore", error)
        finally:
            self._collector.close()
            self._kubelet.close()

    # What systemd has reset since the last agent ended is not left so until the CPUs are measured.
    def _hold_again(self, desired: DesiredState | None) -> None:
        if desired is None:
            return
        try:
            self._writer.apply(msgspec.structs.replace(desired, reason=_AS_BEFORE), time.monotonic_ns(), SUPPRESS)
        except KoordebpfError as error:
            log.warning("what the agent before this one held is not held until the CPUs are measured: %s", error)
        else:
            self._last = msgspec.structs.replace(self._last, desired=desired)

    def _restore(self) -> None:
        try:
            left = self._writer.restore(time.monotonic_ns(), owner=SUPPRESS, wait_s=WAIT_S).left
        except OSError as error:
            log.warning("suppression values restored, but the journal could not be updated: %s", error)
            return
        tell_left(left)

    def _keep(self, path: Path, *, waits: bool) -> None:
        if not self._kept.replace(msgspec.json.encode(msgspec.structs.replace(self._last, left_s=time.time()))):
            self._restore()
            return
        if not waits:
            log.info("what suppression wrote is kept for the agent that stands by")
        elif self._writer.is_journalled:
            pid, keep_s = leave_waiting(path.parent, self._settings.keep_s), self._settings.keep_s
            log.info("what suppression wrote is kept for a successor; process %d waits %g s for one", pid, keep_s)


# What cannot be read is as nothing: the first decision then rewrites everything.
def _read(file: KeptFile) -> KeptSuppression | None:
    kept = None
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if (raw := file.read()) is not None:
            kept = msgspec.json.decode(raw, type=KeptSuppression)
    file.remove()
    return kept
