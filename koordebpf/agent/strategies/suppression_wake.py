"""Wakes suppression when latency-sensitive pods wait for CPUs or use more: by pressure, the scheduler and usage."""

from __future__ import annotations

import contextlib
import logging

from koordebpf.agent.strategies.cpu_pressure import CpuPressure
from koordebpf.agent.strategies.sched_tracing import SchedTracing, open_latency
from koordebpf.agent.strategies.suppression import Suppression
from koordebpf.agent.strategies.traced_cgroups import TracedCgroups
from koordebpf.agent.strategies.usage_looks import UsageLooks
from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.cpu.sampler import CpuSampler
from koordebpf.errors import SupportError
from koordebpf.events.run_queue import RunQueueWait
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, find_controllers
from koordebpf.kernel.io.loop import Loop
from koordebpf.policy.suppress.wake import (
    WakeSettings,
    WakeSource,
    WakeState,
    due_ns,
    judged,
    restarted,
    rise,
)
from koordebpf.report.prom.wake import WakeMetrics

log = logging.getLogger(__name__)


def open_wake(
    settings: WakeSettings,
    index: CgroupIndex,
    cpu: CpuSampler,
    suppression: Suppression,
    loop: Loop,
    metrics: WakeMetrics,
    stack: contextlib.ExitStack,
) -> SuppressionWake | None:
    """Return what wakes suppression, closed by the stack; None: nothing is to, or there is no cpu controller."""
    mount = find_controllers().get("cpu")
    if mount is None or not (settings.pressure or settings.scheduler or settings.usage):
        return None
    wake = SuppressionWake(settings, mount, index, cpu, suppression, loop, metrics)
    stack.callback(wake.close)
    return wake


class SuppressionWake:
    """Looks at what others than best-effort pods use as soon as they wait, and says when a round is worth it.

    What is not supported here is logged once; the regular rounds continue without it.

    Args:
        mount: of the cpu controller.
    """

    def __init__(
        self,
        settings: WakeSettings,
        mount: ControllerMount,
        index: CgroupIndex,
        cpu: CpuSampler,
        suppression: Suppression,
        loop: Loop,
        metrics: WakeMetrics,
    ) -> None:
        self._settings = settings
        self._index = index
        self._cpu = cpu
        self._suppression = suppression
        self._metrics = metrics
        self._state = WakeState()
        self._is_looked = False  # the first of the two looks was taken
        self._seen: WakeSource | None = None  # since the last look
        self._cgroups = TracedCgroups(mount)
        self._pressure = CpuPressure(settings, mount, loop, self._see_pressure) if settings.pressure else None
        self._tracing = self._open_tracing(loop) if settings.scheduler else None
        self._usage = UsageLooks(settings, loop, cpu, suppression, lambda: self._state) if settings.usage else None

    def _open_tracing(self, loop: Loop) -> SchedTracing | None:
        try:
            tracing = SchedTracing(open_latency(self._settings), self._settings, loop, self._see_wait, self._metrics)
        except SupportError as error:
            log.warning("the scheduler does not wake suppression: %s", error)
            return None
        log.info("the scheduler wakes suppression, for %.2g %% of the CPUs at most", 100 * self._settings.budget_ratio)
        return tracing

    def _see_pressure(self) -> None:
        self._seen = self._seen or "pressure"

    def _see_wait(self, wait: RunQueueWait) -> None:
        self._seen, self._cgroups.wait = "scheduler", wait

    def look(self, now_ns: int) -> str | None:
        """Take what looks are due; return why a round of suppression is worth it now, None: it is not."""
        self._follow(now_ns)
        if self._tracing:
            self._tracing.look(now_ns)
        risen = self._usage.take() if self._usage else None
        if risen is not None and self._suppression.amount is not None:
            self._state = restarted(self._state, "usage", now_ns, self._settings)
            return self._after_judging(now_ns, f"{self._cgroups.cause('usage')}, {risen}")
        seen, self._seen = self._seen, None
        if seen and self._suppression.amount is not None:  # else no pod is suppressed, and nothing is worth a round
            self._state = restarted(self._state, seen, now_ns, self._settings)
        if self._state.since_ns is None:
            return None
        if not self._is_looked:
            self._is_looked = True
            self._cpu.look(now_ns)
            self._listen_each(self._settings.burst_window_ns)
            return None
        due = due_ns(self._state, self._settings)
        if due is None or now_ns < due:
            return None
        return self._judge(now_ns)

    def _judge(self, now_ns: int) -> str | None:
        used, amount = self._cpu.look(now_ns), self._suppression.amount
        risen = None
        if used is not None and amount is not None:
            risen = rise(used.others_millicpu, used.best_effort_millicpu, amount, self._settings)
        return self._after_judging(now_ns, f"{self._cgroups.cause(self._state.by)}, {risen}" if risen else None)

    def _after_judging(self, now_ns: int, why: str | None) -> str | None:
        by = self._state.by
        self._state = judged(self._state, now_ns, self._settings, is_worth=why is not None)
        self._is_looked = self._state.since_ns is not None
        self._listen_each(max(self._state.heard_ns("scheduler") - now_ns, self._settings.burst_window_ns))
        if self._pressure and (heard_ns := self._state.heard_ns("pressure")) > now_ns:
            self._pressure.rest(heard_ns)
        key = by, "nothing" if why is None else "round"
        self._metrics.wakes[key] = self._metrics.wakes.get(key, 0) + 1
        return why

    # While it rests nothing has to wake it.
    def _listen_each(self, quiet_ns: int) -> None:
        if self._tracing:
            self._tracing.listen_each(quiet_ns)

    @property
    def due_ns(self) -> int | None:
        """When `look` is due; None: when something is seen."""
        dues = (due_ns(self._state, self._settings), self._tracing.due_ns if self._tracing else None)
        return min((due for due in dues if due is not None), default=None)

    # Whose tasks count, after some cgroup was born, died or changed its owner.
    def _follow(self, now_ns: int) -> None:
        if not self._cgroups.are_due(self._index.version, now_ns):
            return
        if not (self._tracing or (self._pressure and self._pressure.follows_pods)):
            return
        owned = {owner.path.strip("/"): owner for each in self._index if (owner := self._index.owner(each))}
        if self._tracing:
            self._tracing.follow(*self._cgroups.sort(owned))
        if self._pressure:
            self._pressure.follow(owned)

    def close(self) -> None:
        """Release programs and triggers."""
        if self._usage:
            self._usage.close()
        if self._pressure:
            self._pressure.close()
        if self._tracing:
            self._tracing.close()
