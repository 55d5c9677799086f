"""The cgroups of a node's containers, by the index."""

from __future__ import annotations

import msgspec

from koordebpf.attribution.owner import OwnerKind
from koordebpf.collect.node_watch import NodeWatch


class ContainerCgroup(msgspec.Struct, frozen=True):
    """The cgroup of a container; `uid` is its pod's, `path` is relative to the hierarchy's root."""

    uid: str
    container_id: str
    path: str


def containers_of(watch: NodeWatch) -> list[ContainerCgroup]:
    """Return the containers of known pods, by the node's cgroups; sandboxes are none."""
    index, found = watch.index, []
    for uid, pod_cgroup in index.pod_cgroups().items():
        for cgroup_id in index.children(pod_cgroup):
            owner, path = index.owner(cgroup_id), index.path(cgroup_id)
            if owner is None or path is None or owner.kind is not OwnerKind.CONTAINER or owner.container_id is None:
                continue
            found.append(ContainerCgroup(uid, owner.container_id, path))
    return found
