"""Wakes suppression when latency-sensitive pods begin to wait for CPUs: by pressure triggers, and by the scheduler."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

from koordebpf.agent.strategies.sched_tracing import SchedTracing
from koordebpf.agent.strategies.suppression import Suppression
from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.attribution.paths import BURSTABLE, GUARANTEED
from koordebpf.collect.cpu_owners import best_effort_root, is_application
from koordebpf.errors import CgroupGone, SupportError
from koordebpf.events.run_queue import RunQueueWait
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, cgroup_id, find_controllers
from koordebpf.kernel.io.loop import Loop
from koordebpf.kernel.proc.psi import NODE_CPU_PRESSURE, PsiTrigger, PsiTriggers
from koordebpf.policy.suppress.wake import WakeSettings, WakeSource, WakeState, due_ns, is_rise, judged, restarted
from koordebpf.report.prom.wake import WakeMetrics
from koordebpf.units import NS_PER_S, format_millicpu, format_ns

log = logging.getLogger(__name__)

_FOLLOW_EVERY_NS = NS_PER_S  # Why: 330 cgroups take 5 ms, and some nodes make one each few milliseconds
_LONGEST_STALL_US = 50_000  # a trigger's stall lies within its window

_OF_PODS = (OwnerKind.POD, OwnerKind.SANDBOX, OwnerKind.CONTAINER, OwnerKind.NESTED, OwnerKind.HOST_APPLICATION)


def open_wake(
    settings: WakeSettings,
    index: CgroupIndex,
    suppression: Suppression,
    loop: Loop,
    metrics: WakeMetrics,
    stack: contextlib.ExitStack,
) -> SuppressionWake | None:
    """Return what wakes suppression, closed by the stack; None: nothing is to, or there is no cpu controller."""
    mount = find_controllers().get("cpu")
    if mount is None or not (settings.pressure or settings.scheduler):
        return None
    wake = SuppressionWake(settings, mount, index, suppression, loop, metrics)
    stack.callback(wake.close)
    return wake


class SuppressionWake:
    """Looks at what others than best-effort pods use as soon as they wait, and says when a round is worth it.

    What is not supported here is logged once; the regular rounds go on without it.

    Args:
        mount: of the cpu controller.
    """

    def __init__(
        self,
        settings: WakeSettings,
        mount: ControllerMount,
        index: CgroupIndex,
        suppression: Suppression,
        loop: Loop,
        metrics: WakeMetrics,
    ) -> None:
        self._settings = settings
        self._mount = mount
        self._index = index
        self._suppression = suppression
        self._loop = loop
        self._metrics = metrics
        self._state = WakeState()
        self._is_looked = False  # the first of the two looks was taken
        self._seen: WakeSource | None = None  # since the last look
        self._wait: RunQueueWait | None = None
        self._paths: dict[int, str] = {}  # of the cpu controller's hierarchy
        self._version: int | None = None
        self._followed_ns = 0
        self._stall_us = min(settings.wait_ns // 1000, _LONGEST_STALL_US)
        self._triggers = PsiTriggers(file="cpu.pressure", stall_us=self._stall_us)
        self._node_trigger = self._open_node_trigger() if settings.pressure and mount.version == 1 else None
        self._pressure_fds = {self._node_trigger.fileno()} if self._node_trigger else set[int]()
        self._tracing = self._open_tracing() if settings.scheduler else None

    def _open_node_trigger(self) -> PsiTrigger | None:
        try:
            trigger = PsiTrigger(NODE_CPU_PRESSURE, stall_us=self._stall_us)
        except SupportError as error:
            log.info("CPU pressure does not wake suppression: %s", error)
            return None
        self._loop.watch(trigger.fileno(), self._see_pressure, priority=True)
        log.info("CPU pressure of the machine wakes suppression, at most each %s", format_ns(trigger.window_us * 1000))
        return trigger

    def _open_tracing(self) -> SchedTracing | None:
        try:
            tracing = SchedTracing(self._settings, self._loop, self._see_wait, self._metrics)
        except SupportError as error:
            log.warning("the scheduler does not wake suppression: %s", error)
            return None
        log.info("the scheduler wakes suppression, for %.2g %% of the CPUs at most", 100 * self._settings.budget_ratio)
        return tracing

    def _see_pressure(self) -> None:
        self._seen = self._seen or "pressure"

    def _see_wait(self, wait: RunQueueWait) -> None:
        self._seen, self._wait = "scheduler", wait

    def look(self, now_ns: int) -> str | None:
        """Take what looks are due; return why a round of suppression is worth it now, None: it is not."""
        self._follow(now_ns)
        if self._tracing:
            self._tracing.look(now_ns)
        seen, self._seen = self._seen, None
        if seen and self._suppression.amount is not None:  # else no pod is suppressed, and nothing is worth a round
            self._state = restarted(self._state, seen, now_ns, self._settings)
        if self._state.since_ns is None:
            return None
        if not self._is_looked:
            self._is_looked = True
            self._suppression.look(now_ns)
            self._listen_each(self._settings.burst_window_ns)
            return None
        due = due_ns(self._state, self._settings)
        if due is None or now_ns < due:
            return None
        return self._judge(now_ns)

    def _judge(self, now_ns: int) -> str | None:
        used, amount = self._suppression.look(now_ns), self._suppression.amount
        why, by = None, self._state.by
        if used is not None and amount is not None and used.best_effort_millicpu:
            left = amount.pods_millicpu + amount.host_applications_millicpu
            if is_rise(used.others_millicpu, left, amount.capacity_millicpu, self._settings):
                rise = f"{format_millicpu(used.others_millicpu)} used where {format_millicpu(left)} were left"
                why = f"{self._cause(by)}, {rise}"
        self._state = judged(self._state, now_ns, self._settings, is_worth=why is not None)
        self._is_looked = self._state.since_ns is not None
        self._listen_each(max(self._state.heard_ns("scheduler") - now_ns, self._settings.burst_window_ns))
        if (heard_ns := self._state.heard_ns("pressure")) > now_ns:
            for fd in self._pressure_fds:
                self._loop.rest(fd, heard_ns)
        key = by, "nothing" if why is None else "round"
        self._metrics.wakes[key] = self._metrics.wakes.get(key, 0) + 1
        return why

    # While it rests nothing has to wake it.
    def _listen_each(self, quiet_ns: int) -> None:
        if self._tracing:
            self._tracing.listen_each(quiet_ns)

    def _cause(self, by: WakeSource) -> str:
        if by == "pressure" or self._wait is None:
            return "tasks wait for CPUs"
        who, before = (self._paths.get(each, "") for each in (self._wait.cgroup_id, self._wait.be_cgroup_id))
        return f"a task of {who} waited {format_ns(self._wait.delta_ns)} for a CPU{before and f' behind {before}'}"

    @property
    def due_ns(self) -> int | None:
        """When `look` is due; None: when something is seen."""
        dues = (due_ns(self._state, self._settings), self._tracing.due_ns if self._tracing else None)
        return min((due for due in dues if due is not None), default=None)

    # Whose tasks count, after some cgroup was born, died or changed its owner.
    def _follow(self, now_ns: int) -> None:
        if self._index.version == self._version or now_ns - self._followed_ns < _FOLLOW_EVERY_NS:
            return
        self._version, self._followed_ns = self._index.version, now_ns
        has_triggers = self._settings.pressure and self._mount.version == 2
        if not (self._tracing or has_triggers):
            return  # the machine's own trigger follows no pod
        owned = {owner.path.strip("/"): owner for each in self._index if (owner := self._index.owner(each))}
        if self._tracing:
            self._trace(owned, self._tracing)
        if has_triggers:
            self._trigger(owned)

    def _trace(self, owned: dict[str, Owner], tracing: SchedTracing) -> None:
        below = f"{best_effort_root(owned)}/"
        self._paths = {}
        sides: dict[bool, list[int]] = {True: [], False: []}
        for path, owner in owned.items():
            if owner.kind not in _OF_PODS:
                continue
            try:
                number = cgroup_id(self._mount.mount_point / path)
            except CgroupGone:
                continue
            self._paths[number] = path
            sides[path.startswith(below)].append(number)
        tracing.follow(sides[False], sides[True])

    def _trigger(self, owned: dict[str, Owner]) -> None:
        wanted = {number: self._mount.mount_point / path for number, path in who_may_wake(owned).items()}
        before = self._triggers.refused
        new, closed = self._triggers.keep_only(wanted)
        self._pressure_fds = self._pressure_fds.difference(closed).union(new)
        for fd in closed:
            self._loop.unwatch(fd)
        for fd in new:
            self._loop.watch(fd, self._see_pressure, priority=True)
        if self._triggers.refused != before:
            log.info("CPU pressure does not wake suppression: %s", self._triggers.refused)

    def close(self) -> None:
        """Release programs and triggers."""
        for fd in self._pressure_fds:
            self._loop.unwatch(fd)
        self._triggers.close()
        if self._node_trigger:
            self._node_trigger.close()
        if self._tracing:
            self._tracing.close()


def who_may_wake(owned: Mapping[str, Owner]) -> dict[int, str]:
    """Return the cgroups whose CPU pressure is that of those who are not best-effort: number → path.

    Burstable pods have a directory above them all, guaranteed ones lie beside best-effort ones, and host applications
    anywhere.
    """
    below = f"{best_effort_root(owned)}/"
    return {
        owner.cgroup_id: path
        for path, owner in owned.items()
        if (owner.kind is OwnerKind.ROOT and owner.kube_qos == BURSTABLE)
        or (owner.kind is OwnerKind.POD and owner.kube_qos == GUARANTEED)
        or (is_application(path, owned) and not path.startswith(below))
    }
