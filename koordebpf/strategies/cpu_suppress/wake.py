"""Wakes suppression when latency-sensitive pods wait for CPUs or use more: by pressure, the scheduler and usage."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.attribution.paths import BURSTABLE, GUARANTEED
from koordebpf.collect.cpu.owners import best_effort_root, is_application
from koordebpf.collect.cpu.sampler import CpuSampler
from koordebpf.errors import CgroupGone, SupportError
from koordebpf.events.run_queue import RunQueueWait
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, cgroup_id, find_controllers
from koordebpf.kernel.io.loop import Loop
from koordebpf.kernel.proc.psi import NODE_CPU_PRESSURE, PsiTrigger, PsiTriggers
from koordebpf.strategies.cpu_suppress.bursts import WakeState, due_ns, judged, next_usage_look_ns, restarted, rise
from koordebpf.strategies.cpu_suppress.choose import BeAmount
from koordebpf.strategies.cpu_suppress.sched_tracing import SchedTracing, WakeMetrics, open_latency
from koordebpf.strategies.cpu_suppress.values import WakeSettings, WakeSource
from koordebpf.units import NS_PER_S, format_ns

_OF_PODS = (OwnerKind.POD, OwnerKind.SANDBOX, OwnerKind.CONTAINER, OwnerKind.NESTED, OwnerKind.HOST_APPLICATION)
_EVERY_NS = NS_PER_S  # Why: 330 cgroups take 5 ms, and some nodes make one each few milliseconds
log = logging.getLogger(__name__)
_LONGEST_STALL_US = 50_000  # a trigger's stall lies within its window


class LastRound(Protocol):
    """What the last round of suppression left to whom; None: it suppressed no pod."""

    amount: BeAmount | None


class TracedCgroups:
    """Knows the paths of traced cgroups in the cpu controller's hierarchy. `wait`: the last one that was seen."""

    def __init__(self, mount: ControllerMount) -> None:
        self._mount = mount
        self._paths: dict[int, str] = {}
        self._sorted: tuple[int, int] | None = None  # version of the index, and when
        self.wait: RunQueueWait | None = None

    def are_due(self, version: int, now_ns: int) -> bool:
        """Tell whether they are to be sorted again: some changed since, and that was a second ago; if so it counts."""
        if self._sorted is not None:
            before, sorted_ns = self._sorted
            if version == before or now_ns - sorted_ns < _EVERY_NS:
                return False
        self._sorted = version, now_ns
        return True

    def sort(self, owned: Mapping[str, Owner]) -> tuple[list[int], list[int]]:
        """Return the cgroup ids of those that are not best-effort, and of those that are."""
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
        return sides[False], sides[True]

    def cause(self, by: WakeSource) -> str:
        """Return why suppression was woken, in words."""
        if by == "usage":
            return "latency-sensitive pods use more"
        if by == "pressure" or self.wait is None:
            return "tasks wait for CPUs"
        waiting, before = (self._paths.get(each, "") for each in (self.wait.cgroup_id, self.wait.be_cgroup_id))
        return f"a task of {waiting} waited {format_ns(self.wait.delta_ns)} for a CPU{before and f' behind {before}'}"


class UsageLooks:
    """Ends the loop's wait when latency-sensitive pods use clearly more than the last round left them.

    Args:
        settings: of wakes.
        loop: to look from.
        cpu: reads who uses the CPUs.
        suppression: of the node.
        state: gives the present state of wakes: while one is in progress or rests nothing is looked at.
    """

    def __init__(
        self,
        settings: WakeSettings,
        loop: Loop,
        cpu: CpuSampler,
        suppression: LastRound,
        state: Callable[[], WakeState],
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._cpu = cpu
        self._suppression = suppression
        self._state = state
        self._risen: str | None = None
        loop.set_timer(self._sample)

    def poll(self) -> str | None:
        """Return how far they have risen since the last call, in words; None: they have not."""
        risen, self._risen = self._risen, None
        return risen

    def close(self) -> None:
        """Look no more."""
        self._loop.stop_timer(self._sample)

    def _sample(self, now_ns: int) -> int:
        amount, state = self._suppression.amount, self._state()
        if amount is None:  # no pod is suppressed
            return now_ns + NS_PER_S
        best_effort = amount.capacity_millicpu
        if state.since_ns is None and self._risen is None and now_ns >= state.heard_ns("usage"):
            used = self._cpu.sample_burst(now_ns)
            best_effort = 0 if used is None else used.best_effort_millicpu
            self._risen = None if used is None else rise(used.others_millicpu, best_effort, amount, self._settings)
            if self._risen is not None:
                self._loop.wake()
        return next_usage_look_ns(now_ns, best_effort, amount.capacity_millicpu, state, self._settings)


class CpuPressure:
    """Calls `see` from the loop when tasks have waited for CPUs; what cannot be watched is logged once.

    Args:
        mount: of the cpu controller.
    """

    def __init__(self, settings: WakeSettings, mount: ControllerMount, loop: Loop, see: Callable[[], None]) -> None:
        self._mount = mount
        self._loop = loop
        self._see = see
        stall_us = min(settings.wait_ns // 1000, _LONGEST_STALL_US)
        self._triggers = PsiTriggers(file="cpu.pressure", stall_us=stall_us)
        self._node_trigger = None if self.follows_pods else self._open_node_trigger(stall_us)
        self._fds = {self._node_trigger.fileno()} if self._node_trigger else set[int]()

    @property
    def follows_pods(self) -> bool:
        """Whether there is a trigger for each pod; else the machine's own is the only one."""
        return self._mount.version == 2

    def _open_node_trigger(self, stall_us: int) -> PsiTrigger | None:
        try:
            trigger = PsiTrigger(NODE_CPU_PRESSURE, stall_us=stall_us)
        except SupportError as error:
            log.info("CPU pressure does not wake suppression: %s", error)
            return None
        self._loop.watch(trigger.fileno(), self._see, priority=True)
        log.info("CPU pressure of the machine wakes suppression, at most each %s", format_ns(trigger.window_us * 1000))
        return trigger

    def follow(self, owned: Mapping[str, Owner]) -> None:
        """Watch the pods that there are now, by path; the machine's trigger stays as it is."""
        if not self.follows_pods:
            return
        wanted = {number: self._mount.mount_point / path for number, path in who_may_wake(owned).items()}
        before = self._triggers.refused
        new, closed = self._triggers.keep_only(wanted)
        self._fds = self._fds.difference(closed).union(new)
        for fd in closed:
            self._loop.unwatch(fd)
        for fd in new:
            self._loop.watch(fd, self._see, priority=True)
        if self._triggers.refused != before:
            log.info("CPU pressure does not wake suppression: %s", self._triggers.refused)

    def rest(self, until_ns: int) -> None:
        """Let no trigger wake the loop until then."""
        for fd in self._fds:
            self._loop.rest(fd, until_ns)

    def close(self) -> None:
        """Release every trigger."""
        for fd in self._fds:
            self._loop.unwatch(fd)
        self._triggers.close()
        if self._node_trigger:
            self._node_trigger.close()


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


def open_wake(
    settings: WakeSettings,
    index: CgroupIndex,
    cpu: CpuSampler,
    suppression: LastRound,
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
        suppression: LastRound,
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

    def poll(self, now_ns: int) -> str | None:
        """Take what looks are due; return why a round of suppression is worth it now, None: it is not."""
        self._follow(now_ns)
        if self._tracing:
            self._tracing.poll(now_ns)
        risen = self._usage.poll() if self._usage else None
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
            self._cpu.sample_burst(now_ns)
            self._listen_each(self._settings.burst_window_ns)
            return None
        due = due_ns(self._state, self._settings)
        if due is None or now_ns < due:
            return None
        return self._judge(now_ns)

    def _judge(self, now_ns: int) -> str | None:
        used, amount = self._cpu.sample_burst(now_ns), self._suppression.amount
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
        """When `poll` is due; None: when something is seen."""
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
