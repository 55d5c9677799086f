"""`CgroupIndex`: every cgroup of the node and its pod, kept current by mkdir, rmdir and rename. Pure.

Owns the tree of names and the join with the pods. Refuses usage numbers and any look at the file system: who finds
names missing here reads them and tells `add` or `replace_all`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from koordebpf.attribution.kubelet_root import KubeletRoot
from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.attribution.paths import NO_PODS, TREE_ROOT, Place, child_place, host_application_place, place_of_path
from koordebpf.attribution.static_pods import CgroupNames, cgroup_names, is_api_uid
from koordebpf.attribution.tree_nodes import (
    KnownPod,
    NestedBound,
    PodLevels,
    Sandboxes,
    TreeNode,
    is_sandbox,
    kubepods_above,
)
from koordebpf.events.records import CgroupMkdir, CgroupRename, CgroupRmdir
from koordebpf.kube.cache.objects import Pod

# Why 65,536: the kernel's own bound on memory cgroups (MEM_CGROUP_ID_MAX in mm/memcontrol.c).
MAX_CGROUPS = 1 << 16


class KnownPods:
    """`by_uid` is by metadata.uid; `names` says under which names their cgroups are found."""

    def __init__(self) -> None:
        self.by_uid: dict[str, KnownPod] = {}
        self.names = CgroupNames({}, {}, ())

    def replace_all(self, pods: Sequence[Pod]) -> None:
        """Know these pods and no others."""
        old = self.by_uid
        # By identity: a source hands out the same object until something in it changes.
        self.by_uid = {
            pod.uid: known if (known := old.get(pod.uid)) and known.pod is pod else KnownPod(pod) for pod in pods
        }
        self.names = cgroup_names(known.pod for known in self.by_uid.values())

    def named(self, path_uid: str | None) -> KnownPod | None:
        """Return the pod whose cgroup bears this name; None: it is not known."""
        return None if path_uid is None else self.by_uid.get(self.names.uids.get(path_uid, ""))

    def names_to_act_on(self, uid: str) -> tuple[str, ...]:
        """Return the names that a pod's directory may bear, `CgroupIndex.names_to_act_on`."""
        name = self.names.hashes.get(uid)
        return (uid,) if name is None or is_api_uid(name) else (uid, name)


def owner_at(
    cgroup_id: int, kind: OwnerKind, path: str, place: Place, known: KnownPod | None, container_name: str | None
) -> Owner:
    """Return the owner of a cgroup at its place; `known` is the pod there, None where none is known."""
    return Owner(
        cgroup_id=cgroup_id,
        kind=kind,
        path=path,
        pod_uid=known.pod.uid if known else place.pod_uid,
        pod_known=known is not None,
        namespace=known.pod.metadata.namespace if known else None,
        pod_name=known.pod.metadata.name if known else None,
        container_id=place.container_id,
        container_name=container_name,
        kube_qos=place.kube_qos,
        host_application=place.host_application,
    )


class Rescan(msgspec.Struct, frozen=True):
    """What a walk of the tree corrected."""

    missing: tuple[int, ...]  # ids the index had not, or had at another place
    extra: tuple[int, ...]  # ids the index had and the tree has not


class CgroupIndex:
    """Cgroup id → owner, and pod uid → cgroup id.

    A cgroup whose parent is unknown waits as an orphan, without owner, until the parent appears. An id that is made
    again below another parent is another cgroup: the old one, whose rmdir was not seen, is removed with all below it.

    Pods are found below the kubelet's root alone, once it is known. Of two cgroups of one pod the younger one counts.

    The sandbox is the one container-level cgroup of a known pod that no container status names, if it is also the
    oldest there (ids only grow) and another one is named. A second unknown one, or one that is younger than a
    named one, may be a container whose status is not yet written: it stays a CONTAINER without a name.

    Within a container only `MAX_NESTED` cgroups of a pod are held, and `MAX_NESTED_LEVELS` of them in a chain: what is
    beyond is refused and counted, and another pod's is not.

    Cost:    measured with 13,000 cgroups: mkdir 5 µs, rmdir 3 µs, `owner` 4 µs the first time after a change and
             0.1 µs again, `subtree_pod` 0.1 µs; 0.7 KiB a cgroup.
    """

    def __init__(
        self,
        host_applications: Mapping[str, str] | None = None,
        max_cgroups: int = MAX_CGROUPS,
        cgroup_root: str | None = None,
    ) -> None:
        """Begin empty.

        Args:
            host_applications: path → name of the host applications with a directory of their own choice.
            max_cgroups: cgroups beyond it are refused and counted.
            cgroup_root: the kubelet's; None: it is learned from the pods.
        """
        self.kubelet = KubeletRoot(cgroup_root)
        self.refused = 0
        self.version = 0  # another one: some owner may be another
        self._max_cgroups = max_cgroups
        self._host_applications = dict(host_applications or {})
        self._nodes: dict[int, TreeNode] = {}
        self._children: dict[int, set[int]] = {}  # also of parents that are not known yet
        self._roots: set[int] = set()  # where walks began; their name is a whole path
        self._orphans: set[int] = set()  # the topmost ones
        self._unread: set[int] = set()
        self._nested = NestedBound(self._nodes)
        self._sandboxes = Sandboxes(self._nodes, self._children)
        self._pods = KnownPods()
        self._levels = PodLevels()
        self._subtree_pod: dict[int, str] = {}
        self._owners: dict[int, Owner] = {}  # what `owner` worked out
        self._pod_cgroups: dict[str, int] | None = None  # None: to be worked out again

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, cgroup_id: int) -> bool:
        return cgroup_id in self._nodes

    def __iter__(self) -> Iterator[int]:
        return iter(self._nodes)

    @property
    def orphans(self) -> int:
        """How many cgroups wait for their parent; those below them not counted."""
        return len(self._orphans)

    def add(self, cgroup_id: int, parent_id: int, name: str) -> bool:
        """Hold a cgroup by its last path component; return whether that is news. It takes the place of a pending name.

        A parent of 0 makes it a root, where the node's tree begins; its name is its whole path.
        """
        self._unread.discard(cgroup_id)
        old = self._nodes.get(cgroup_id)
        if old is not None and old.parent_id == parent_id:
            if old.name == name:
                return False
            old.name = name
            self._place(cgroup_id)
            return True
        if old is not None:
            self._drop(cgroup_id)
        elif len(self._nodes) >= self._max_cgroups or (parent_id and self._nested.is_beyond(parent_id)):
            self.refused += 1
            return False
        self._nodes[cgroup_id] = TreeNode(parent_id, name, None)
        self._children.setdefault(parent_id, set()).add(cgroup_id)
        if not parent_id:
            self._roots.add(cgroup_id)
        self._place(cgroup_id)
        return True

    def born(self, record: CgroupMkdir) -> None:
        """Hold the cgroup that the kernel made."""
        # A parent of 0 is one the program could not tell. As an orphan it has no path; only a walk finds it.
        if record.parent_id:
            self.add(record.cgroup_id, record.parent_id, record.name)
        if record.name_cut or not record.parent_id:
            self._mark_unread(record.cgroup_id)
        self._learn_root()

    def died(self, death: CgroupRmdir) -> None:
        """Forget the cgroup and what was below it: the kernel removes empty cgroups only, so those deaths were lost."""
        self._unread.discard(death.cgroup_id)
        if death.cgroup_id in self._nodes:
            self._drop(death.cgroup_id)

    def renamed(self, rename: CgroupRename) -> None:
        """Give the cgroup its new name; what is below it stays and is judged again."""
        node = self._nodes.get(rename.cgroup_id)
        if node is None:
            if rename.parent_id:
                self.add(rename.cgroup_id, rename.parent_id, rename.name)
        else:
            self._unread.discard(rename.cgroup_id)
            node.name = rename.name
            self._place(rename.cgroup_id)
        if rename.name_cut or (node is None and not rename.parent_id):
            self._mark_unread(rename.cgroup_id)
        self._learn_root()

    def replace_all(self, walked: Iterable[tuple[int, int, str]]) -> Rescan:
        """Make the index equal to a walk of (cgroup id, parent's id, path), parents first; return what was wrong.

        The first one is the node's root. A path is relative to the hierarchy's mount, whatever the root.

        Cost:    0.5 µs a cgroup that was right.
        """
        missing: list[int] = []
        seen: set[int] = set()
        # Which ones of them are held is decided again: those that are held may be gone.
        for pod_id in self._nested.full():
            for container_id in tuple(self._children.get(pod_id, ())):
                for cgroup_id in tuple(self._children.get(container_id, ())):
                    self._drop(cgroup_id)
        for cgroup_id, parent_id, path in walked:
            if seen and parent_id not in self._nodes:
                continue  # its parent was refused
            # The root's parent is outside of what is looked at.
            is_news = self.add(cgroup_id, parent_id, path.rpartition("/")[2]) if seen else self.add(cgroup_id, 0, path)
            seen.add(cgroup_id)
            if is_news:
                missing.append(cgroup_id)
        extra = tuple(cgroup_id for cgroup_id in self._nodes if cgroup_id not in seen)
        for cgroup_id in extra:
            if cgroup_id in self._nodes:
                self._drop(cgroup_id)
        self._unread.clear()
        self._learn_root()
        return Rescan(tuple(missing), extra)

    def is_closed(self, cgroup_id: int) -> bool:
        """Tell whether a walk need not look below a cgroup: what is there would be refused."""
        return cgroup_id not in self._nodes or self._nested.is_beyond(cgroup_id)

    def pending_names(self) -> tuple[int, ...]:
        """Return the ids whose name or parent the record did not hold: a walk tells them."""
        return tuple(self._unread)

    def set_pods(self, pods: Sequence[Pod]) -> None:
        """Know these pods and no others.

        Cost:    an unchanged object 1 µs, a new one 7 µs.
        """
        before = self._pods.names
        self._pods.replace_all(pods)
        for path_uid, _ in self._levels.items():
            uid = self._pods.names.uids.get(path_uid)
            if before.uids.get(path_uid) != uid:
                for cgroup_id in [each for top in self._levels.of(path_uid) for each in self._subtree(top)]:
                    self._subtree_pod[cgroup_id] = uid or path_uid
        self._owners.clear()
        self._pod_cgroups = None
        self.version += 1
        self._learn_root()

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences on pods that claim the cgroup of another one, and on cgroups that only look like pods'; some."""
        return self._pods.names.problems + self.kubelet.problems

    def names_to_act_on(self, uid: str) -> tuple[str, ...]:
        """Return the names that the directory must bear before anything is done to this pod: its UID, or its own hash.

        A hash of the form of an API server's UID is not one of them: whatever is believed of a pod's annotations, it
        never leads to a directory that bears another pod's UID.
        """
        return self._pods.names_to_act_on(uid)

    def set_host_applications(self, host_applications: Mapping[str, str]) -> None:
        """Know these host applications, path → name, and no others.

        Cost:    nothing while they stay the same, else a new look at every cgroup.
        """
        if self._host_applications != host_applications:
            self._host_applications = dict(host_applications)
            for root in tuple(self._roots):
                self._place(root)

    def owner(self, cgroup_id: int) -> Owner | None:
        """Return who a cgroup belongs to; None where it is not held, or its parent is not."""
        owner = self._owners.get(cgroup_id)
        if owner is None and (node := self._nodes.get(cgroup_id)) is not None and node.place is not None:
            owner = self._owners[cgroup_id] = self._owner(cgroup_id, node, node.place)
        return owner

    def subtree_pod(self, cgroup_id: int) -> str | None:
        """Return the uid of the pod at or above a cgroup: metadata.uid of a known pod, else what the path says.

        None too where it is not the cgroup by which that pod is measured, `pod_cgroup`.
        """
        uid = self._subtree_pod.get(cgroup_id)
        return None if uid is None or self._levels.is_twin(self._nodes[cgroup_id].pod_id) else uid

    def pod_cgroup(self, uid: str) -> int | None:
        """Return the cgroup of the pod's own level, by metadata.uid or by what the path says."""
        return self._levels.chosen(self._pods.names.hashes.get(uid, uid))

    def pod_cgroups(self) -> Mapping[str, int]:
        """Return metadata.uid → cgroup of the pod's own level, for the known pods that have one."""
        if self._pod_cgroups is None:
            found = ((uid, self.pod_cgroup(uid)) for uid in self._pods.by_uid)
            self._pod_cgroups = {uid: cgroup_id for uid, cgroup_id in found if cgroup_id is not None}
        return self._pod_cgroups

    def children(self, cgroup_id: int) -> tuple[int, ...]:
        """Return the cgroups directly below one."""
        return tuple(self._children.get(cgroup_id, ()))

    def above(self, cgroup_id: int) -> tuple[int, ...]:
        """Return the cgroups that it lies in below the node's root, the nearest first; none where one is not held."""
        found: list[int] = []
        while (node := self._nodes.get(cgroup_id)) is not None:
            if cgroup_id in self._roots:
                return tuple(found[1:])
            found.append(cgroup_id)
            cgroup_id = node.parent_id
        return ()

    def subtree_roots(self) -> Collection[int]:
        """Return the cgroups outside of pods that are measured by themselves, without the cgroups around them.

        They are the kubelet's directories and `sandboxes`, the same ones as long as `version` is the same.
        """
        return self.kubelet.ids | self.sandboxes().keys()

    def sandboxes(self) -> Mapping[int, int]:
        """Return the cgroups outside of pods that hold a pod's sandbox, each with the cgroup of that pod's own level.

        The pod is the one that has a cgroup of the same sandbox right below its own: Kata and CRI-O make both.
        """
        return self._sandboxes.pods(self._levels, self.version)

    def cgroups_without_pod(self) -> tuple[Owner, ...]:
        """Return the pod-level cgroups for which no pod is known."""
        strays = (cgroup_id for path_uid, cgroup_id in self._levels.items() if path_uid not in self._pods.names.uids)
        return tuple(owner for each in strays if (owner := self.owner(each)) is not None)

    def path(self, cgroup_id: int) -> str | None:
        """Return the path relative to the hierarchy's mount; None where it is not held, or its parent is not."""
        names = self._names_of(cgroup_id)
        return "/".join(filter(None, names)) if names else None

    # The path of the node's root, and the names below it.
    def _names_of(self, cgroup_id: int) -> list[str]:
        names: list[str] = []
        while (node := self._nodes.get(cgroup_id)) is not None:
            names.append(node.name)
            if cgroup_id in self._roots:
                return names[::-1]
            cgroup_id = node.parent_id
        return []

    # Once, as soon as a pod of the list is found: what is below other directories is judged again.
    def _learn_root(self) -> None:
        if self.kubelet.is_known or not self._pods.by_uid:
            return
        found: dict[int, set[str]] = {}
        for path_uid, uid in self._pods.names.uids.items():
            for each in self._levels.of(path_uid):
                found.setdefault(kubepods_above(self._nodes, each), set()).add(uid)
        for each in self.kubelet.learn(found):
            self._place(each)

    # Only as many as there may be cgroups: the names of those that are refused are not asked for.
    def _mark_unread(self, cgroup_id: int) -> None:
        if len(self._unread) < self._max_cgroups:
            self._unread.add(cgroup_id)

    # The ids at and below `top`, parents first.
    def _subtree(self, top: int) -> Iterator[int]:
        stack = [top]
        while stack:
            cgroup_id = stack.pop()
            yield cgroup_id
            stack.extend(self._children.get(cgroup_id, ()))

    # Works out the place of a cgroup and of all below it: when it is made, when its parent appears, after a rename.
    def _place(self, top: int) -> None:
        self.version += 1
        for cgroup_id in self._subtree(top):
            node = self._nodes[cgroup_id]
            self._leave_place(cgroup_id, node)
            place = node.place = self._work_out_place(cgroup_id, node)
            self._nested.count(cgroup_id, node)
            self._sandboxes.place(cgroup_id, place)
            if place is None:
                if node.parent_id not in self._nodes:
                    self._orphans.add(cgroup_id)
                continue
            if place.pod_uid is not None:
                self._subtree_pod[cgroup_id] = self._pods.names.uids.get(place.pod_uid, place.pod_uid)
                if place.kind is OwnerKind.POD:
                    self._levels_changed(self._levels.add(place.pod_uid, cgroup_id))
        self._forget_siblings(self._nodes[top].parent_id)

    def _work_out_place(self, cgroup_id: int, node: TreeNode) -> Place | None:
        if cgroup_id in self._roots:
            # A node cgroup inside another node's pod begins a tree of its own.
            place = place_of_path(node.name, self._host_applications)
            return place if place.is_kubepods and self.kubelet.is_kubepods(cgroup_id, "") else TREE_ROOT
        parent = self._nodes.get(node.parent_id)
        if parent is None or parent.place is None:
            return None
        if self._host_applications and (path := self.path(cgroup_id)) in self._host_applications:
            return host_application_place(self._host_applications[path])
        place = child_place(parent.place, node.name)
        if not place.is_kubepods or parent.place.is_kubepods:
            return place
        return place if self.kubelet.is_kubepods(cgroup_id, "/".join(self._names_of(cgroup_id)[1:])) else NO_PODS

    def _leave_place(self, cgroup_id: int, node: TreeNode) -> None:
        self._owners.pop(cgroup_id, None)
        self._orphans.discard(cgroup_id)
        self._subtree_pod.pop(cgroup_id, None)
        self._nested.forget(node)
        self._sandboxes.place(cgroup_id, None)
        self.kubelet.forget(cgroup_id)
        place = node.place
        if place is not None and place.kind is OwnerKind.POD and place.pod_uid is not None:
            self._levels_changed(self._levels.remove(place.pod_uid, cgroup_id))

    def _levels_changed(self, is_another: bool) -> None:
        self._pod_cgroups = None
        if is_another:
            self._owners.clear()

    def _drop(self, top: int) -> None:
        self.version += 1
        parent_id = self._nodes[top].parent_id
        for cgroup_id in list(self._subtree(top)):
            node = self._nodes.pop(cgroup_id)
            self._leave_place(cgroup_id, node)
            self._roots.discard(cgroup_id)
            self._unread.discard(cgroup_id)
            self._children.pop(cgroup_id, None)
        siblings = self._children.get(parent_id)
        if siblings is not None:
            siblings.discard(top)
            if not siblings:
                del self._children[parent_id]
        self._forget_siblings(parent_id)

    # Which of a pod's containers is the sandbox depends on the others.
    def _forget_siblings(self, parent_id: int) -> None:
        parent = self._nodes.get(parent_id)
        if parent is not None and parent.place is not None and parent.place.kind is OwnerKind.POD:
            for cgroup_id in self._children.get(parent_id, ()):
                self._owners.pop(cgroup_id, None)

    def _owner(self, cgroup_id: int, node: TreeNode, place: Place) -> Owner:
        if self._levels.is_twin(node.pod_id):
            return Owner(cgroup_id, OwnerKind.SYSTEM, self.path(cgroup_id) or "")
        known = self._pods.named(place.pod_uid)
        kind, container_name = place.kind, None
        if known and place.container_id is not None:
            container_name = known.container_names.get(place.container_id)
            if kind is OwnerKind.CONTAINER and container_name is None:
                beside = {each: self._nodes[each].place for each in self._children[node.parent_id]}
                kind = OwnerKind.SANDBOX if is_sandbox(cgroup_id, beside, known) else kind
        return owner_at(cgroup_id, kind, self.path(cgroup_id) or "", place, known, container_name)
