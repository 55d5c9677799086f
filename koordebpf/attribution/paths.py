"""What a cgroup's place in the tree says about it: the kubelet's and the runtimes' directory names. Pure.

A place follows from the parent's place and the own name alone, so that a mkdir costs one step and a path is a fold over
its components. Names of both cgroup drivers are understood side by side; no setting says which one the node uses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from koordebpf.attribution.owner import OwnerKind

GUARANTEED, BURSTABLE, BEST_EFFORT = "Guaranteed", "Burstable", "BestEffort"

_QOS_LEVELS = {"burstable": BURSTABLE, "besteffort": BEST_EFFORT}

# Koordinator's directories of host applications that name no cgroupPath.
_HOST_APPLICATION_DIRS = ("host-latency-sensitive", "host-best-effort")

# kubepods.slice and all below it. systemd repeats the parents in a slice's name, so a kubelet with --cgroup-root=/x has
# x-kubepods-….slice; a pod's uid has `_` where it had `-`.
_SLICE = re.compile(r"(?:[^:]+-)?kubepods(?:-(?P<qos>burstable|besteffort))?(?:-pod(?P<uid>[^-.:]+))?\.slice")

# runc without SystemdCgroup under a kubelet with the systemd driver: the whole path in one name, in the node's root or
# in the runtime's own cgroup, a service of systemd as system.slice/containerd.service.
_COLON_NAME = re.compile(r"(?P<slice>[^:]+\.slice):(?P<runtime>[^:]+):(?P<id>[^:]+)")
_RUNTIME = re.compile(
    r"(?:(?:cri-)?containerd|crio|cri-o|docker|cri-docker|dockerd|k0s\w*|k3s(?:-agent)?|rke2-(?:server|agent)|kubelet"
    r"|snap\.(?:microk8s|k8s)\.[\w.-]+)\.service"
)

# systemd gives each login a tree of its own in there, in which `systemd-run --user --slice=` makes any slice.
USERS = "user.slice"

# `conmon` watches a container of CRI-O or podman from a cgroup of its own beside it.
_CONTAINER = re.compile(
    r"(?:(?:cri-containerd|crio|docker|pouch|libpod|kata)-|kata_)(?P<id>[0-9a-f]{12,64})(?:\.scope)?"
)
_NOT_CONTAINER = re.compile(r"(?:crio|libpod)-conmon-.*|.*\.(?:slice|scope|service)")

# What a runtime keeps of a sandbox outside of its pod's cgroup. Kata without sandbox_cgroup_only has the machine itself
# in /kata_overhead/<id> (src/runtime/virtcontainers/sandbox.go, src/runtime-rs/crates/resource/src/cgroups), CRI-O may
# have a scope in the root (cri-o#10074). All of them have ids of 64 digits.
_SANDBOX_DIRS = ("kata_overhead", "kata_overhead.slice")
_SANDBOX = re.compile(r"(?P<runtime>kata[-_]|crio-|cri-containerd-)?(?P<id>[0-9a-f]{64})(?:\.scope)?")


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where in Kubernetes' tree a cgroup is.

    `pod_uid` is what the path says: metadata.uid, or for a static pod its annotation kubernetes.io/config.hash.
    `sandbox_id`: of a cgroup outside of all pods that is named after a sandbox. `Sandboxes` finds its pod.
    """

    kind: OwnerKind
    kube_qos: str | None = None
    pod_uid: str | None = None
    container_id: str | None = None
    host_application: str | None = None
    is_kubepods: bool = False  # kubepods or a QoS level: pods are its children
    is_host_application_dir: bool = False
    names_no_pods: bool = False  # nor does anything below it, whatever it is called
    may_be_runtimes: bool = False  # a slice in the node's root: runtimes are services in there
    sandbox_id: str | None = None
    has_sandboxes: bool = False  # what is in there bears the id of a sandbox alone
    has_containers: bool = False  # the node's root or a runtime: containers' whole paths may be names in there


TREE_ROOT = Place(OwnerKind.ROOT, has_containers=True)
NO_PODS = Place(OwnerKind.SYSTEM, names_no_pods=True)
_SYSTEM = Place(OwnerKind.SYSTEM)
_TOP_SLICE = Place(OwnerKind.SYSTEM, may_be_runtimes=True)
_OF_RUNTIME = Place(OwnerKind.SYSTEM, has_containers=True)
_KUBEPODS = Place(OwnerKind.ROOT, is_kubepods=True)
_QOS_PLACES = {
    name: Place(OwnerKind.ROOT, kube_qos=kube_qos, is_kubepods=True) for name, kube_qos in _QOS_LEVELS.items()
}
_OF_SANDBOXES = Place(OwnerKind.SYSTEM, has_sandboxes=True)
_HOST_APPLICATION_DIR = Place(OwnerKind.ROOT, is_host_application_dir=True)


def child_place(parent: Place, name: str) -> Place:
    """Return the place of the child `name` of a cgroup at `parent`.

    Cost:    1 µs.
    """
    match parent.kind:
        case OwnerKind.POD:
            return _below_pod(parent, name)
        case OwnerKind.CONTAINER | OwnerKind.SANDBOX | OwnerKind.NESTED:
            return Place(OwnerKind.NESTED, parent.kube_qos, parent.pod_uid, parent.container_id)
        case OwnerKind.HOST_APPLICATION:
            return parent
        case OwnerKind.ROOT if parent.is_host_application_dir:
            return Place(OwnerKind.HOST_APPLICATION, host_application=name)
        case OwnerKind.ROOT if parent.is_kubepods:
            return _below_kubepods(parent, name)
        case OwnerKind.ROOT if name in _HOST_APPLICATION_DIRS:
            return _HOST_APPLICATION_DIR
        case _:
            return parent if parent.names_no_pods else _outside(parent, name)


def place_of_path(path: str, host_applications: Mapping[str, str] | None = None) -> Place:
    """Return the place of a path relative to the node's root, `kubepods/burstable/pod…` or with a leading slash.

    Args:
        path: of the cgroup.
        host_applications: path → name of the host applications with a directory of their own choice.

    >>> place_of_path("kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1_2.slice").pod_uid
    '1-2'
    """
    place, so_far = TREE_ROOT, ""
    for name in path.split("/"):
        if name:
            so_far = f"{so_far}/{name}" if so_far else name
            application = host_applications.get(so_far) if host_applications else None
            place = host_application_place(application) if application else child_place(place, name)
    return place


def host_application_place(name: str) -> Place:
    """Return the place of a host application's cgroup."""
    return Place(OwnerKind.HOST_APPLICATION, host_application=name)


# A kubelet may have its kubepods anywhere: below --cgroup-root, below a nested node's own cgroup. Which one is the
# kubelet's is for `KubeletRoot` to say. Its pods are below it and nowhere else.
def _outside(parent: Place, name: str) -> Place:
    if name == USERS:
        return NO_PODS
    if ":" in name:
        return (_colon_place(name) if parent.has_containers else None) or _SYSTEM
    if name == "kubepods" or ("kubepods" in name and _slice_place(name) is _KUBEPODS):
        return _KUBEPODS
    if parent is TREE_ROOT and name in _SANDBOX_DIRS:
        return _OF_SANDBOXES
    if (parent is TREE_ROOT or parent.may_be_runtimes or parent.has_sandboxes) and (match := _SANDBOX.fullmatch(name)):
        is_one = match["runtime"] or parent.has_sandboxes
        return Place(OwnerKind.SYSTEM, sandbox_id=match["id"]) if is_one else _SYSTEM
    if parent is TREE_ROOT and name.endswith(".slice"):
        return _TOP_SLICE
    return _OF_RUNTIME if parent.may_be_runtimes and _RUNTIME.fullmatch(name) else _SYSTEM


def _below_kubepods(parent: Place, name: str) -> Place:
    if name.startswith("pod") and len(name) > 3:
        return Place(OwnerKind.POD, parent.kube_qos or GUARANTEED, name[3:])
    if name in _QOS_PLACES:
        return _QOS_PLACES[name]
    return _slice_place(name) or _SYSTEM


def _slice_place(name: str) -> Place | None:
    if (match := _SLICE.fullmatch(name)) is None:
        return None
    qos, uid = match["qos"], match["uid"]
    if uid:
        return Place(OwnerKind.POD, _QOS_LEVELS[qos] if qos else GUARANTEED, uid.replace("_", "-"))
    return _QOS_PLACES[qos] if qos else _KUBEPODS


def _colon_place(name: str) -> Place | None:
    if (match := _COLON_NAME.fullmatch(name)) and (pod := _slice_place(match["slice"])) and pod.pod_uid:
        return Place(OwnerKind.CONTAINER, pod.kube_qos, pod.pod_uid, match["id"])
    return None


# Without a runtime's prefix the name is the container's id: what runc is given by the cgroupfs driver.
def _below_pod(pod: Place, name: str) -> Place:
    match = _CONTAINER.fullmatch(name)
    if match is None and _NOT_CONTAINER.fullmatch(name):
        return Place(OwnerKind.NESTED, pod.kube_qos, pod.pod_uid)
    return Place(OwnerKind.CONTAINER, pod.kube_qos, pod.pod_uid, match["id"] if match else name)
