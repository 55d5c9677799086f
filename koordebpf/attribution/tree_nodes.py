"""What the index holds of one cgroup and of one pod, which cgroup is a pod's, and how many one may have. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from koordebpf.attribution.owner import OwnerKind
from koordebpf.attribution.paths import Place
from koordebpf.kube.cache.objects import Pod

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


def kubepods_above(nodes: Mapping[int, TreeNode], cgroup_id: int) -> int:
    """Return the topmost one of the kubepods directory and the QoS levels that a pod's own level is in."""
    parent_id = nodes[cgroup_id].parent_id
    while (parent := nodes.get(parent_id)) is not None and parent.place is not None and parent.place.is_kubepods:
        cgroup_id, parent_id = parent_id, parent.parent_id
    return cgroup_id


def is_sandbox(cgroup_id: int, containers: Mapping[int, Place | None], known: KnownPod) -> bool:
    """Tell whether a container's cgroup that no status names is the sandbox, among all that its pod has."""
    is_one_named = False
    for other_id, place in containers.items():
        if other_id == cgroup_id or place is None or place.kind is not OwnerKind.CONTAINER:
            continue
        if place.container_id not in known.container_names or other_id < cgroup_id:
            return False
        is_one_named = True
    return is_one_named


class PodLevels:
    """The cgroups of pods' own levels by the uid in their paths.

    Of two that bear one uid the younger one is the pod's, as after a change of the kubelet's driver. The other one is
    its twin, and has no owner.
    """

    def __init__(self) -> None:
        self._ids: dict[str, set[int]] = {}
        self._doubled: set[str] = set()  # uids of several cgroups
        self._twins: frozenset[int] | None = None  # None: to be worked out again

    def of(self, path_uid: str) -> Collection[int]:
        """Return all that bear this uid."""
        return self._ids.get(path_uid, ())

    def chosen(self, path_uid: str) -> int | None:
        """Return the one that is the pod's."""
        return max(self.of(path_uid), default=None)

    def items(self) -> Iterator[tuple[str, int]]:
        """Yield each uid with the one that is the pod's."""
        return ((path_uid, max(ids)) for path_uid, ids in self._ids.items())

    def is_twin(self, cgroup_id: int | None) -> bool:
        """Tell whether this one bears the name of a pod that has a younger one."""
        if not self._doubled:
            return False
        if self._twins is None:
            doubled = (self._ids[path_uid] for path_uid in self._doubled)
            self._twins = frozenset(each for ids in doubled for each in ids if each != max(ids))
        return cgroup_id in self._twins

    def add(self, path_uid: str, cgroup_id: int) -> bool:
        """Take one in; return whether another one is the pod's now, or no more."""
        ids = self._ids.setdefault(path_uid, set())
        ids.add(cgroup_id)
        return self._changed(path_uid, ids)

    def remove(self, path_uid: str, cgroup_id: int) -> bool:
        """Leave one out; return as `add`."""
        ids = self._ids[path_uid]
        ids.discard(cgroup_id)
        if not ids:
            del self._ids[path_uid]
        return self._changed(path_uid, ids)

    def _changed(self, path_uid: str, ids: Collection[int]) -> bool:
        was_doubled = path_uid in self._doubled
        if len(ids) > 1:
            self._doubled.add(path_uid)
        else:
            self._doubled.discard(path_uid)
        self._twins = None
        return was_doubled or len(ids) > 1


class Sandboxes:
    """The cgroups outside of pods that bear the id of a sandbox, and the pods whose sandboxes these are."""

    def __init__(self, nodes: Mapping[int, TreeNode], children: Mapping[int, Collection[int]]) -> None:
        self._nodes, self._children = nodes, children
        self._ids: dict[int, str] = {}
        self._pods: tuple[int, Mapping[int, int]] = (-1, {})  # of a version of the index

    def place(self, cgroup_id: int, place: Place | None) -> None:
        """Take a cgroup in by its place, or leave it out."""
        if place is not None and place.sandbox_id is not None:
            self._ids[cgroup_id] = place.sandbox_id
        elif self._ids:
            self._ids.pop(cgroup_id, None)

    def pods(self, levels: PodLevels, version: int) -> Mapping[int, int]:
        """Return by cgroup the own level of the pod that has that sandbox: one right below it bears the id as well.

        An id that several pods bear is no pod's: who can make cgroups in its own pod's may disown another pod of its
        sandbox, but not claim it.

        Cost:    0.3 µs a container for each version, where there is such a cgroup.
        """
        if self._pods[0] != version:
            bearers: dict[str, set[int]] = {each: set() for each in self._ids.values()}
            if bearers:
                for _, level in levels.items():
                    for child in self._children.get(level, ()):
                        place = self._nodes[child].place
                        if place is not None and (its := bearers.get(place.container_id or "")) is not None:
                            its.add(level)
            found = ((cgroup_id, bearers[sandbox_id]) for cgroup_id, sandbox_id in self._ids.items())
            self._pods = version, {cgroup_id: next(iter(one)) for cgroup_id, one in found if len(one) == 1}
        return self._pods[1]


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
