"""The cgroups whose usage is measured: of pods, their containers, host applications, the best-effort directory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Literal

import msgspec

from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.owner import OwnerKind
from koordebpf.collect.cpu.owners import best_effort_root
from koordebpf.collect.scope import NodeScope
from koordebpf.errors import CgroupGone
from koordebpf.kernel.cgroup.hierarchy import cgroup_id

GroupKind = Literal["pod", "container", "host_application", "best_effort", "node"]


class UsageGroup(msgspec.Struct, frozen=True):
    """One of them. `name` is the pod's uid, the container's id, or the application's name; `pod_uid` a container's.

    `cgroup_id` is the memory controller's; `path` is the same below every hierarchy's mount.
    """

    cgroup_id: int
    path: str
    kind: GroupKind
    name: str = ""
    pod_uid: str = ""


class UsageGroups:
    """Those that there are now: `by_id`. Containers are those that a pod's status names, so that no sandbox is one.

    `parts` are what the system's share is the rest of: pods and host applications. `best_effort`: that directory.
    """

    def __init__(self, scope: NodeScope, index: CgroupIndex) -> None:
        self._scope = scope
        self._index = index
        self._seen: tuple[int, Mapping[str, str]] | None = None
        self.by_id: dict[int, UsageGroup] = {}
        self.parts: tuple[int, ...] = ()
        self.best_effort: int | None = None

    def look(self, host_applications: Mapping[str, str]) -> bool:
        """Take over what was created, removed or renamed since; return whether there was anything.

        Args:
            host_applications: directory below the node's root → name.
        Cost:    0.5 ms for 440 cgroups where something changed.
        """
        seen = self._index.version, host_applications
        if seen == self._seen:
            return False
        self._seen = seen[0], dict(host_applications)
        self.by_id = {group.cgroup_id: group for group in self._groups(host_applications)}
        kinds = {group: each.kind for group, each in self.by_id.items()}
        self.parts = tuple(group for group, kind in kinds.items() if kind in ("pod", "host_application"))
        self.best_effort = next((group for group, kind in kinds.items() if kind == "best_effort"), None)
        return True

    def _groups(self, host_applications: Mapping[str, str]) -> Iterator[UsageGroup]:
        index, node_path = self._index, self._scope.node_path
        prefix = f"{node_path}/" if node_path else ""
        if node_path:
            yield UsageGroup(self._scope.root_id, node_path, "node")
        owned = {owner.path.strip("/"): owner for each in index if (owner := index.owner(each)) is not None}
        if (root := best_effort_root(owned)) is not None:
            yield UsageGroup(owned[root].cgroup_id, root, "best_effort")
        for path, name in host_applications.items():
            if (found := self._id_of(f"{prefix}{path}")) is not None:
                yield UsageGroup(found, f"{prefix}{path}", "host_application", name)
        for uid, pod_id in index.pod_cgroups().items():
            owner = index.owner(pod_id)
            if owner is None:
                continue
            yield UsageGroup(pod_id, owner.path, "pod", uid)
            for child in index.children(pod_id):
                its = index.owner(child)
                if its is not None and its.kind is OwnerKind.CONTAINER and its.container_name and its.container_id:
                    yield UsageGroup(child, its.path, "container", its.container_id, uid)

    def _id_of(self, path: str) -> int | None:
        try:
            return cgroup_id(self._scope.hierarchy.mount_point / path)
        except CgroupGone:
            return None


class InTurn:
    """Gives some of many cgroups at a time, so that reading many costs no more than reading few."""

    def __init__(self, most: int) -> None:
        """Give so many at a time."""
        self._most = most
        self._left: list[int] = []  # those that are due first come last

    def next(self, groups: Collection[int]) -> Iterator[int]:
        """Yield those that are due of these. A new turn starts with those there are then."""
        due = min(self._most, len(groups))
        while due:
            if not self._left:
                self._left = list(groups)[::-1]
            group = self._left.pop()
            if group in groups:
                due -= 1
                yield group
