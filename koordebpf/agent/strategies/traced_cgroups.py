"""The cgroups whose tasks the scheduler is traced for, and the wait that was seen last."""

from __future__ import annotations

from collections.abc import Mapping

from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.collect.cpu.owners import best_effort_root
from koordebpf.errors import CgroupGone
from koordebpf.events.run_queue import RunQueueWait
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, cgroup_id
from koordebpf.policy.suppress.wake import WakeSource
from koordebpf.units import NS_PER_S, format_ns

_OF_PODS = (OwnerKind.POD, OwnerKind.SANDBOX, OwnerKind.CONTAINER, OwnerKind.NESTED, OwnerKind.HOST_APPLICATION)
_EVERY_NS = NS_PER_S  # Why: 330 cgroups take 5 ms, and some nodes make one each few milliseconds


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
