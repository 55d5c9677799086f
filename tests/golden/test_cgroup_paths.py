"""Cgroup paths as kubelets, runtimes and nested nodes make them, and whose they are."""

from __future__ import annotations

import pytest

from koordebpf.attribution.owner import OwnerKind
from koordebpf.attribution.paths import place_of_path

UID = "8a3c0d57-9f0c-4f2e-9a51-2f0a6a3b7c11"
U = UID.replace("-", "_")
HASH = "d0141ec4c1df7a3c9f9d3b6b4d2f8c5a"  # kubernetes.io/config.hash of a static pod
ID = "3f5d0e9b7a6c4d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1b0c9d8e"
BE_SLICE = f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{U}.slice"
KIND_SLICES = (
    f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{U}.slice"
)

POD, CONTAINER, NESTED = OwnerKind.POD, OwnerKind.CONTAINER, OwnerKind.NESTED
ROOT, SYSTEM, HOST = OwnerKind.ROOT, OwnerKind.SYSTEM, OwnerKind.HOST_APPLICATION
G, B, BE = "Guaranteed", "Burstable", "BestEffort"

# path, kind, kube_qos, pod uid, container id, host application
PATHS = [
    ("", ROOT, None, None, None, None),
    # cgroupfs driver
    ("kubepods", ROOT, None, None, None, None),
    ("kubepods/burstable", ROOT, B, None, None, None),
    ("kubepods/besteffort", ROOT, BE, None, None, None),
    (f"kubepods/pod{UID}", POD, G, UID, None, None),
    (f"kubepods/burstable/pod{UID}", POD, B, UID, None, None),
    (f"kubepods/besteffort/pod{UID}", POD, BE, UID, None, None),
    (f"/kubepods/besteffort/pod{UID}/{ID}", CONTAINER, BE, UID, ID, None),
    (f"kubepods/besteffort/pod{UID}/crio-{ID}", CONTAINER, BE, UID, ID, None),
    (f"kubepods/besteffort/pod{UID}/crio-conmon-{ID}", NESTED, BE, UID, None, None),
    (f"kubepods/burstable/pod{HASH}/{ID}", CONTAINER, B, HASH, ID, None),
    # systemd driver
    ("kubepods.slice", ROOT, None, None, None, None),
    ("kubepods.slice/kubepods-burstable.slice", ROOT, B, None, None, None),
    ("kubepods.slice/kubepods-besteffort.slice", ROOT, BE, None, None, None),
    (f"kubepods.slice/kubepods-pod{U}.slice", POD, G, UID, None, None),
    (f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{U}.slice", POD, B, UID, None, None),
    (f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{HASH}.slice", POD, B, HASH, None, None),
    (f"kubepods.slice/kubepods-pod{U}.slice/cri-containerd-{ID}.scope", CONTAINER, G, UID, ID, None),
    (BE_SLICE, POD, BE, UID, None, None),
    (f"{BE_SLICE}/cri-containerd-{ID}.scope", CONTAINER, BE, UID, ID, None),
    (f"{BE_SLICE}/crio-{ID}.scope", CONTAINER, BE, UID, ID, None),
    (f"{BE_SLICE}/docker-{ID}.scope", CONTAINER, BE, UID, ID, None),
    (f"{BE_SLICE}/pouch-{ID}.scope", CONTAINER, BE, UID, ID, None),
    (f"{BE_SLICE}/libpod-{ID}.scope", CONTAINER, BE, UID, ID, None),
    (f"{BE_SLICE}/crio-conmon-{ID}.scope", NESTED, BE, UID, None, None),
    (f"{BE_SLICE}/libpod-conmon-{ID}.scope", NESTED, BE, UID, None, None),
    # below a container: crun, an init system, a nested node
    (f"{BE_SLICE}/crio-{ID}.scope/container", NESTED, BE, UID, ID, None),
    (f"{BE_SLICE}/cri-containerd-{ID}.scope/init.scope", NESTED, BE, UID, ID, None),
    (f"{BE_SLICE}/cri-containerd-{ID}.scope/system.slice/nginx.service", NESTED, BE, UID, ID, None),
    (f"{BE_SLICE}/cri-containerd-{ID}.scope/kubepods/burstable/podother", NESTED, BE, UID, ID, None),
    # --cgroup-root, kind, a node in a cgroup
    (f"kubelet/kubepods/besteffort/pod{UID}/{ID}", CONTAINER, BE, UID, ID, None),
    ("kubelet.slice", SYSTEM, None, None, None, None),
    (KIND_SLICES, POD, BE, UID, None, None),
    (f"{KIND_SLICES}/cri-containerd-{ID}.scope", CONTAINER, BE, UID, ID, None),
    (f"docker/{ID}/kubelet/kubepods/pod{UID}/{ID}", CONTAINER, G, UID, ID, None),
    (f"system.slice/docker-{ID}.scope/{KIND_SLICES}/cri-containerd-{ID}.scope", CONTAINER, BE, UID, ID, None),
    # containerd without SystemdCgroup under a kubelet with the systemd driver
    (
        f"system.slice/containerd.service/kubepods-besteffort-pod{U}.slice:cri-containerd:{ID}",
        CONTAINER, BE, UID, ID, None,
    ),
    (f"kubepods-burstable-pod{U}.slice:cri-containerd:{ID}", CONTAINER, B, UID, ID, None),
    # host applications
    ("host-latency-sensitive", ROOT, None, None, None, None),
    ("host-latency-sensitive/nginx", HOST, None, None, None, "nginx"),
    ("host-best-effort/hadoop/executor-1", HOST, None, None, None, "hadoop"),
    ("yarn/nodemanager", HOST, None, None, None, "yarn"),
    ("yarn/nodemanager/executor-1", HOST, None, None, None, "yarn"),
    # the machine's own, and names that only look like a pod's
    ("system.slice/containerd.service", SYSTEM, None, None, None, None),
    ("user.slice/user-0.slice/session-1.scope", SYSTEM, None, None, None, None),
    (f"docker/{ID}", SYSTEM, None, None, None, None),
    (f"pod{UID}", SYSTEM, None, None, None, None),
    (f"system.slice/pod{UID}", SYSTEM, None, None, None, None),
    ("kubepods/pod", SYSTEM, None, None, None, None),
    ("kubepods/pod/x", SYSTEM, None, None, None, None),
    ("mykubepods.slice", SYSTEM, None, None, None, None),
    ("a:b", SYSTEM, None, None, None, None),
    ("elsewhere/host-best-effort/hadoop", SYSTEM, None, None, None, None),
]  # fmt: skip


@pytest.mark.parametrize(("path", "kind", "kube_qos", "pod_uid", "container_id", "host_application"), PATHS)
def test_path(path, kind, kube_qos, pod_uid, container_id, host_application) -> None:
    place = place_of_path(path, {"yarn/nodemanager": "yarn"})
    found = (place.kind, place.kube_qos, place.pod_uid, place.container_id, place.host_application)
    assert found == (kind, kube_qos, pod_uid, container_id, host_application)
