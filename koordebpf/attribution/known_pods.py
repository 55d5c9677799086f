"""The pods that the source knows, by UID and by the names of their cgroups; owners that follow from them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.attribution.paths import Place
from koordebpf.attribution.static_pods import CgroupNames, cgroup_names, is_api_uid
from koordebpf.attribution.tree_nodes import KnownPod
from koordebpf.kube.cache.objects import Pod


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
