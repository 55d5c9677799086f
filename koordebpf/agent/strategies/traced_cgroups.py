"""The cgroups whose tasks the scheduler is traced for, and the wait that was seen last."""

from __future__ import annotations

from collections.abc import Mapping

from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.collect.cpu.owners import best_effort_root
from koordebpf.errors import CgroupGone
from koordebpf.events.run_queue import RunQueueWait
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, cgroup_id
from koordebpf.policy.suppress.wake import WakeSource
from koordebpf.units import format_ns

_OF_PODS = (OwnerKind.POD, OwnerKind.SANDBOX, OwnerKind.CONTAINER, OwnerKind.NESTED, OwnerKind.HOST_APPLICATION)


class TracedCgroups:
    """Knows the paths of traced cgroups in the cpu controller's hierarchy. `wait`: the last one that was seen."""

    def __init__(self, mount: ControllerMount) -> None:
        self._mount = mount
        self._paths: dict[int, str] = {}
        self.wait: RunQueueWait | None = None

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
        if by == "pressure" or self.wait is None:
            return "tasks wait for CPUs"
        waiting, before = (self._paths.get(each, "") for each in (self.wait.cgroup_id, self.wait.be_cgroup_id))
        return f"a task of {waiting} waited {format_ns(self.wait.delta_ns)} for a CPU{before and f' behind {before}'}"
