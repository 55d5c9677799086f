"""BECPUSuppress in a running agent: holds best-effort pods to the CPU that others leave, and remembers it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from koordebpf.act.writer.restore import WAIT_S
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.errors import KoordebpfError
from koordebpf.kernel.io.regular_file import KeptFile
from koordebpf.policy.reconcile import DesiredState
from koordebpf.policy.strategy import KEPT, Decision
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import Runner
from koordebpf.state.measured import Measured
from koordebpf.state.view import NodeView
from koordebpf.store.handover import can_wait, leave_waiting, tell_left
from koordebpf.store.node_lock import is_awaited
from koordebpf.strategies.cpu_suppress.choose import BeAmount
from koordebpf.strategies.cpu_suppress.decide import BE_CPU_SUPPRESS, SuppressDecision
from koordebpf.strategies.cpu_suppress.plan import SuppressPlan
from koordebpf.strategies.cpu_suppress.sched_tracing import WakeMetrics
from koordebpf.strategies.cpu_suppress.values import (
    KeptSuppression,
    SuppressMeasured,
    SuppressSettings,
    SuppressState,
    adopted,
)
from koordebpf.strategies.cpu_suppress.wake import SuppressionWake, open_wake

log = logging.getLogger(__name__)
_AS_BEFORE = "as the agent before this one held it"
_KOORDLET_TYPES = ("cpuset", "cfsQuota")


class SuppressionMetrics:
    """What suppression shows of itself. The loop replaces the values, scrapes read them.

    `koordlet_node`: the Node's name in koordlet's metrics; None: they are not shown.
    """

    def __init__(self, koordlet_node: str | None = None) -> None:
        self._koordlet_node = koordlet_node
        self.held_millicpu: int | None = None  # None: nothing holds them
        self.policy: str | None = None  # by what it is held: cpuset or cfsQuota
        self.wake = WakeMetrics()

    def families(self) -> Iterator[Metric]:
        """Yield the metrics."""
        cores = GaugeMetricFamily(
            "koordebpf_be_cpu_cores", "CPU that best-effort pods may use, where they are held; in a dry run, would be."
        )
        if self.held_millicpu is not None:
            cores.add_metric([], self.held_millicpu / 1000)
        yield cores
        if self._koordlet_node and self.held_millicpu is not None and self.policy in _KOORDLET_TYPES:
            text = "CPU that best-effort pods may use, by what holds them."
            cores = GaugeMetricFamily("koordlet_be_suppress_cpu_cores", text, labels=["node", "type"])
            cores.add_metric([self._koordlet_node, self.policy], self.held_millicpu / 1000)
            yield cores
        yield from self.wake.families()


class Suppression(Runner):
    """One node's suppression, from decisions to files and back.

    Args:
        settings: of suppression.
        writer: of the node.
        folder: of the one agent that acts on the node: what a successor continues from. None: dry run.
        metrics: show what is held.
    """

    needs_cpu = True
    writes = BE_CPU_SUPPRESS.name

    def __init__(
        self, settings: SuppressSettings, writer: CgroupWriter, folder: Path | None, metrics: SuppressionMetrics
    ) -> None:
        super().__init__("CPU annotations")
        self._settings = settings
        self._kept = KeptFile(folder / KEPT if folder else None, "a successor begins from nothing")
        self._writer = writer
        self._metrics = metrics
        kept, now_s = _read(self._kept), time.time()
        self._last = KeptSuppression(adopted(kept, now_s, settings.keep_s), now_s)  # as if this agent ended now
        self.amount: BeAmount | None = None  # of the last round; None: it suppressed no pod
        self.wake: SuppressionWake | None = None  # what begins a round before its time
        self._woken_by: str | None = None  # in words, for the round that follows
        self._skipped: str | None = None  # why no pod was held in the last round
        self.states[BE_CPU_SUPPRESS.name] = self._last.state
        if kept is not None and kept.is_fresh(now_s, settings.keep_s):
            self._hold_again(kept.desired)

    def poll_due(self, now_ns: int) -> bool:
        """Tell whether others need more CPU now than the last round left them."""
        self._woken_by = self.wake.poll(now_ns) if self.wake else None
        return self._woken_by is not None

    def due_ns(self, now_ns: int) -> int | None:
        """Return when a look is due that a wake waits for."""
        return self.wake.due_ns if self.wake else None

    def measure(self, measured: Measured, *, is_sample: bool) -> Measured:
        """Say why the round comes before its time, where it does."""
        if is_sample or self._woken_by is None:
            return measured
        return measured.with_part(BE_CPU_SUPPRESS.part, SuppressMeasured(self._woken_by))

    def families(self) -> Iterable[Metric]:
        """As `Runner.families`."""
        return self._metrics.families()

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Write what a decision on this view wants; where it skipped, what was written before stays."""
        made = decisions.get(BE_CPU_SUPPRESS.name)
        if not isinstance(made, SuppressDecision):
            return
        plan, problems = made.plan, view.cpu.placement.problems if view.cpu else ()
        self.report((f"what cannot be read binds no CPU: {problem}" for problem in problems), view.now_ns)
        self.amount = plan.amount
        self._metrics.held_millicpu, self._metrics.policy = plan.held_millicpu, plan.policy
        self._tell(plan)
        if plan.skipped is None:
            self._writer.apply(plan.desired, view.now_ns, BE_CPU_SUPPRESS.name)
            self._last = msgspec.structs.replace(self._last, state=plan.next, desired=plan.desired)
            self.states[BE_CPU_SUPPRESS.name] = plan.next

    def _tell(self, plan: SuppressPlan) -> None:
        # That a first sample is not enough yet is no news: there is one after each start.
        if plan.skipped and plan.skipped not in (self._skipped, "first_sample"):
            log.info("best-effort pods' CPU is not held: %s", plan.reason)
        elif not plan.skipped and (plan.next.memory_hold is None) != (self.state.memory_hold is None):
            log.info("%s", plan.reason)
        self._skipped = plan.skipped

    @property
    def state(self) -> SuppressState:
        """What the next decision starts from."""
        return self._last.state

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

    # What systemd has reset since the last agent ended is not left so until the CPUs are measured.
    def _hold_again(self, desired: DesiredState | None) -> None:
        if desired is None:
            return
        try:
            self._writer.apply(
                msgspec.structs.replace(desired, reason=_AS_BEFORE), time.monotonic_ns(), BE_CPU_SUPPRESS.name
            )
        except KoordebpfError as error:
            log.warning("what the agent before this one held is not held until the CPUs are measured: %s", error)
        else:
            self._last = msgspec.structs.replace(self._last, desired=desired)

    def _restore(self) -> None:
        try:
            left = self._writer.restore(time.monotonic_ns(), owner=BE_CPU_SUPPRESS.name, wait_s=WAIT_S).left
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


def open_runner(node: NodeContext) -> Suppression | None:
    """Return it; None for a frame of one moment, which nothing is carried out of."""
    if node.is_one_frame:
        return None
    config = node.config
    metrics = SuppressionMetrics(node.metrics.koordlet_node if config.enforce else None)
    runner = Suppression(node.settings_of(BE_CPU_SUPPRESS), node.writer, node.folder, metrics)
    node.stack.callback(runner.close)
    if node.cpu is not None and config.feature_gates.get(BE_CPU_SUPPRESS.gate):
        index = node.measuring.watch.index
        runner.wake = open_wake(config.wake, index, node.cpu, runner, node.loop, metrics.wake, node.stack)
    return runner
