"""What the index holds of one cgroup and of one pod, and how many a pod may have within its containers. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from koordebpf.attribution.owner import OwnerKind
from koordebpf.attribution.paths import Place
from koordebpf.kube.objects import Pod

# Why 4,096 and 24: within its containers a pod with a container runtime of its own has some hundreds, few levels down.
# One that may write the cgroup file system can make all that the kernel allows, and must not use up the other pods'.
MAX_NESTED = 1 << 12
MAX_NESTED_LEVELS = 24
_NO_POD = 0  # of those that wait for their parent: bounded as a pod is, since the parent may have been refused


class TreeNode:
    """One cgroup: its name, its parent, and where that puts it."""

    __slots__ = ("counted_for", "levels", "name", "parent_id", "place", "pod_id")

    def __init__(self, parent_id: int, name: str, place: Place | None) -> None:
        self.parent_id = parent_id
        self.name = name
        self.place = place  # None: an orphan, or below one
        self.pod_id: int | None = None  # the pod's own level at or above it
        self.levels = 0  # below that one
        self.counted_for: int | None = None


class KnownPod:
    """A pod that the source knows, with the names of its containers by id."""

    __slots__ = ("container_names", "pod")

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        status = pod.status
        self.container_names = {
            each.containerID.partition("://")[2]: each.name
            for statuses in (
                status.containerStatuses,
                status.initContainerStatuses,
                status.ephemeralContainerStatuses,
            )
            for each in statuses or ()
            if "://" in each.containerID
        }


class NestedBound:
    """Counts the cgroups within the containers of each pod."""

    def __init__(self, nodes: Mapping[int, TreeNode]) -> None:
        self._nodes = nodes
        self._held: dict[int, int] = {}  # cgroup of the pod's own level → how many

    def full(self) -> list[int]:
        """Return the cgroups of the pods that have as many as they may."""
        return [each for each, count in self._held.items() if count >= MAX_NESTED and each in self._nodes]

    def is_beyond(self, parent_id: int) -> bool:
        """Tell whether a child of this cgroup would be one too many."""
        parent = self._nodes.get(parent_id)
        if parent is None or parent.place is None:
            return self._held.get(_NO_POD, 0) >= MAX_NESTED
        if parent.pod_id is None or not parent.levels:
            return False
        return parent.levels >= MAX_NESTED_LEVELS or self._held.get(parent.pod_id, 0) >= MAX_NESTED

    def count(self, cgroup_id: int, node: TreeNode) -> None:
        """Take in a cgroup whose place, and whose parent's, is known by now."""
        place, parent = node.place, self._nodes.get(node.parent_id)
        if place is None:
            node.counted_for = _NO_POD
        elif place.kind is OwnerKind.POD:
            node.pod_id, node.levels = cgroup_id, 0
        elif parent is not None and parent.pod_id is not None and place.pod_uid is not None:
            node.pod_id, node.levels = parent.pod_id, parent.levels + 1
            if node.levels > 1:
                node.counted_for = node.pod_id
        if node.counted_for is not None:
            self._held[node.counted_for] = self._held.get(node.counted_for, 0) + 1

    def forget(self, node: TreeNode) -> None:
        """Leave a cgroup out; twice is harmless."""
        counted_for = node.counted_for
        node.pod_id, node.levels, node.counted_for = None, 0, None
        if counted_for is not None:
            self._held[counted_for] -= 1
            if not self._held[counted_for]:
                del self._held[counted_for]
