"""Who a cgroup belongs to, as a value."""

from __future__ import annotations

import enum

import msgspec


class OwnerKind(enum.Enum):
    """What a cgroup is to Kubernetes."""

    ROOT = "root"  # the node itself, kubepods and its QoS levels
    POD = "pod"  # the pod's own level
    SANDBOX = "sandbox"
    CONTAINER = "container"
    NESTED = "nested"  # below a container: crun, init systems inside; or beside one: conmon
    HOST_APPLICATION = "host-application"  # NodeSLO hostApplications
    SYSTEM = "system"  # everything else of the machine


class Owner(msgspec.Struct, frozen=True):
    """Who a cgroup belongs to.

    `pod_uid` comes from the path (for static pods the annotation kubernetes.io/config.hash stands there) and is
    resolved to metadata.uid where the pod is known; `pod_known` is False while no source has reported the pod, which
    then stays visible as such. `container_name` is None where no status names the id yet.
    """

    cgroup_id: int
    kind: OwnerKind
    path: str  # relative to the hierarchy's root, for people
    pod_uid: str | None = None
    pod_known: bool = False
    namespace: str | None = None
    pod_name: str | None = None
    container_id: str | None = None
    container_name: str | None = None
    kube_qos: str | None = None  # Guaranteed, Burstable, BestEffort: from the path
    host_application: str | None = None
