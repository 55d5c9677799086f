"""CPU pressure triggers: of the machine on cgroup v1, of the pods that are not best-effort on v2."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.attribution.paths import BURSTABLE, GUARANTEED
from koordebpf.collect.cpu.owners import best_effort_root, is_application
from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.io.loop import Loop
from koordebpf.kernel.proc.psi import NODE_CPU_PRESSURE, PsiTrigger, PsiTriggers
from koordebpf.policy.suppress.wake import WakeSettings
from koordebpf.units import format_ns

log = logging.getLogger(__name__)

_LONGEST_STALL_US = 50_000  # a trigger's stall lies within its window


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
