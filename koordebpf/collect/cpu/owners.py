"""Whose the directories with CPU files are: pods, host applications, and the best-effort directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.attribution.paths import BEST_EFFORT


class CpuOwners(msgspec.Struct, frozen=True):
    """The node's directories as of the last time that one was created, removed or changed its owner.

    `pods` and `applications` are path → uid or name, and whether it lies in the best-effort directory, `root`.
    `apart`: pods outside the best-effort directory, and not in its parent. `has_others`: the parent, kubepods, holds
    nothing but pods.
    """

    owned: Mapping[str, Owner] = {}
    root: str | None = None
    parent: str | None = None  # the directory above `root`
    pods: Mapping[str, tuple[str, bool]] = {}
    applications: Mapping[str, tuple[str, bool]] = {}
    apart: tuple[str, ...] = ()
    has_others: bool = False

    def outside(self) -> tuple[str, ...]:
        """Return what is to be read one by one beside the best-effort directory's parent."""
        return (*self.apart, *(path for path, (_, is_be) in self.applications.items() if not is_be))


def cpu_owners(owners: Iterable[Owner]) -> CpuOwners:
    """Sort the owners of the node's cgroups."""
    owned = {owner.path.strip("/"): owner for owner in owners}
    root = best_effort_root(owned)
    below = f"{root}/"
    pods = {
        path: (owner.pod_uid, root is not None and path.startswith(below))
        for path, owner in owned.items()
        if owner.kind is OwnerKind.POD and owner.pod_uid is not None
    }
    applications = {
        path: (owner.host_application, root is not None and path.startswith(below))
        for path, owner in owned.items()
        if owner.host_application is not None and is_application(path, owned)
    }
    # Pods are read one by one, even where only the sum is asked for, if they are not in kubepods, or if something is
    # there that is no pod.
    outside = tuple(path for path, (_, is_be) in pods.items() if not is_be)
    parent = None if root is None else root.rpartition("/")[0]
    above = f"{parent}/"
    has_others = (
        parent is not None
        and parent in owned
        and owned[parent].kind is OwnerKind.ROOT
        and not any(path.startswith(above) for path, (_, is_be) in applications.items() if not is_be)
    )
    apart = tuple(path for path in outside if not path.startswith(above)) if has_others else outside
    return CpuOwners(owned, root, parent, pods, applications, apart, has_others)


def best_effort_root(owned: Mapping[str, Owner]) -> str | None:
    """Return the path of the node's best-effort directory; None: there is none.

    Of two, as a change of kubelet's cgroup driver leaves them until the next boot, it is the one with pods, of those
    the highest, and else systemd's, which koordlet takes too.
    """
    with_pods = {path.rpartition("/")[0] for path, owner in owned.items() if owner.kind is OwnerKind.POD}
    return min(
        (path for path, owner in owned.items() if owner.kind is OwnerKind.ROOT and owner.kube_qos == BEST_EFFORT),
        key=lambda path: (path not in with_pods, path.count("/"), not path.endswith(".slice"), path),
        default=None,
    )


def is_application(path: str, owned: Mapping[str, Owner]) -> bool:
    """Tell whether a cgroup is a host application's own; what lies below is a part of it."""
    above = owned.get(path.rpartition("/")[0])
    return owned[path].host_application is not None and (above is None or above.host_application is None)
