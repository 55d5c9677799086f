"""The directories of pods and containers, and those of the Kubernetes QoS classes, as the index has them."""

from __future__ import annotations

from collections.abc import Mapping

from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.owner import OwnerKind
from koordebpf.collect.cluster_view import Known, is_same
from koordebpf.kernel.cgroup.pod_directory import bears
from koordebpf.state.hooks.measured import PodDirectory

_GUARANTEED = "Guaranteed"


def pod_directories(index: CgroupIndex) -> tuple[list[PodDirectory], dict[str, str]]:
    """Return pods with their containers, and the directory of each class; Guaranteed has that of all pods.

    A directory counts as a pod's only where it bears that pod's own UID, whatever its annotations say. Paths are below
    the mount.

    Cost:    2 µs a cgroup of a pod.
    """
    found: list[PodDirectory] = []
    classes: dict[str, str] = {}
    for uid, cgroup_id in index.pod_cgroups().items():
        owner = index.owner(cgroup_id)
        if owner is None or owner.kind is not OwnerKind.POD:
            continue
        path = owner.path.strip("/")
        above, _, name = path.rpartition("/")
        if not bears(name, index.names_to_act_on(uid)):
            continue
        classes.setdefault(owner.kube_qos or _GUARANTEED, above)
        found.append(PodDirectory(uid, path, _containers(index, cgroup_id)))
    for qos in ("Burstable", "BestEffort"):
        if qos in classes:
            classes.setdefault(_GUARANTEED, classes[qos].rpartition("/")[0])
    return found, dict(sorted(classes.items()))


def _containers(index: CgroupIndex, cgroup_id: int) -> Mapping[str, str]:
    owners = (index.owner(child) for child in index.children(cgroup_id))
    return {
        owner.container_id: owner.path.strip("/")
        for owner in sorted(filter(None, owners), key=lambda each: each.path)
        if owner.kind is OwnerKind.CONTAINER and owner.container_id
    }


class PodDirectoryCache:
    """`pod_directories`, made again only where the index or what is known of the cluster has changed."""

    def __init__(self, index: CgroupIndex, known: Known) -> None:
        self._index = index
        self._known = known
        self._made_of: tuple[int, object] | None = None
        self._found: tuple[list[PodDirectory], dict[str, str]] = ([], {})

    @property
    def inputs(self) -> tuple[int, object]:
        """What the directories follow from: the version of the index, and what is known of the cluster."""
        return self._index.version, self._known.reported

    def read(self) -> tuple[list[PodDirectory], dict[str, str]]:
        """Return the same as `pod_directories`."""
        inputs = self.inputs
        if not is_same(inputs, self._made_of):
            self._found, self._made_of = pod_directories(self._index), inputs
        return self._found
