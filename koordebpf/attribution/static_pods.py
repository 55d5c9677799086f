"""Which pods' cgroups bear another name than metadata.uid: static pods, whose cgroups the kubelet names after a hash.

The API server's copy of a static pod, its mirror pod, has a UID of its own and the hash in the annotation
kubernetes.io/config.hash. Who may annotate a pod can write that one too, so it is believed only of what the kubelet
makes, and never where it is the name of another pod. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from koordebpf.kube.cache.objects import Pod

CONFIG_HASH_ANNOTATION = "kubernetes.io/config.hash"
CONFIG_MIRROR_ANNOTATION = "kubernetes.io/config.mirror"

_MAX_PROBLEMS = 8  # Why: one tenant may have hundreds of pods, and a person reads the first ones
_SHOWN = 64  # characters of a value that any user may have written
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,127}")  # the kubelet's is an MD5 sum, a manifest's own a UID
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class CgroupNames(msgspec.Struct, frozen=True):
    """Under which names the cgroups of a node's pods are found: name → metadata.uid, and what was not believed."""

    uids: dict[str, str]
    hashes: dict[str, str]  # metadata.uid of a mirror pod → the name of its cgroup
    problems: tuple[str, ...]


def cgroup_names(pods: Iterable[Pod]) -> CgroupNames:
    """Return the names of the pods' cgroups, each one pod's: a metadata.uid always, a hash where it is a static pod's.

    A hash that is the UID of another pod, or that two mirror pods claim, has no owner.

    Cost:    0.3 µs a pod.
    """
    pods = tuple(pods)
    keys = {pod.uid: pod.key for pod in pods}
    uids = {uid: uid for uid in keys}
    claims: dict[str, list[Pod]] = {}
    problems = []
    for pod in pods:
        name = (pod.metadata.annotations or {}).get(CONFIG_HASH_ANNOTATION)
        if name is None or name == pod.uid:
            continue
        if name in keys:
            problems.append(f"{_claim(pod, name)}, which is the UID of pod {keys[name]}: it does not count")
        elif is_mirror_pod(pod):
            claims.setdefault(name, []).append(pod)
    hashes = {}
    for name, claimants in claims.items():
        if len(claimants) == 1:
            uids[name], hashes[claimants[0].uid] = claimants[0].uid, name
        else:
            others = ", ".join(each.key for each in claimants[1:3])
            problems.append(f"{_claim(claimants[0], name)}, as do {others}: it counts for none of them")
    if len(problems) > _MAX_PROBLEMS:
        problems[_MAX_PROBLEMS:] = [f"{len(problems) - _MAX_PROBLEMS} more pods claim the cgroup of another one"]
    return CgroupNames(uids, hashes, tuple(problems))


def is_mirror_pod(pod: Pod) -> bool:
    """Tell whether a pod is what a kubelet makes of a static pod: owned by its Node, its two hashes the same.

    Source:  pkg/kubelet/pod/mirror_client.go; the owner since Kubernetes 1.17.
    """
    annotations, node = pod.metadata.annotations or {}, pod.spec.nodeName
    name = annotations.get(CONFIG_MIRROR_ANNOTATION, "")
    return (
        bool(node)
        and _NAME.fullmatch(name) is not None
        and annotations.get(CONFIG_HASH_ANNOTATION) == name
        and any(each.kind == "Node" and each.name == node for each in pod.metadata.ownerReferences or ())
    )


def is_api_uid(name: str) -> bool:
    """Tell whether a name has the form of the UIDs that an API server gives."""
    return _UUID.fullmatch(name) is not None


def _claim(pod: Pod, name: str) -> str:
    shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
    return f"pod {pod.key}: annotation {CONFIG_HASH_ANNOTATION} is {shown!r}"
