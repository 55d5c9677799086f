"""The fields of Kubernetes objects that koordebpf reads, spelled as the API spells them.

Decoded straight from response bytes; unknown fields are skipped, and an object that is encoded again keeps what is
named here.
Absent is None (or an empty container where the API says that is the same).
"""

from __future__ import annotations

import msgspec


class OwnerReference(msgspec.Struct, frozen=True, omit_defaults=True):
    """metav1.OwnerReference."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    """metav1.ObjectMeta. Timestamps stay text, RFC 3339."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    ownerReferences: list[OwnerReference] | None = None
    creationTimestamp: str | None = None
    deletionTimestamp: str | None = None
    deletionGracePeriodSeconds: int | None = None


class ResourceRequirements(msgspec.Struct, frozen=True, omit_defaults=True):
    """corev1.ResourceRequirements; quantities stay as written."""

    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class Container(msgspec.Struct, frozen=True, omit_defaults=True):
    """corev1.Container."""

    name: str = ""
    resources: ResourceRequirements | None = None
    restartPolicy: str | None = None


class EmptyDirVolumeSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """corev1.EmptyDirVolumeSource; medium `Memory` is a tmpfs charged to the pod."""

    medium: str = ""
    sizeLimit: str | int | None = None


class HostPathVolumeSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """corev1.HostPathVolumeSource."""

    path: str = ""


class Volume(msgspec.Struct, frozen=True, omit_defaults=True):
    """corev1.Volume, the sources that can be a tmpfs."""

    name: str = ""
    emptyDir: EmptyDirVolumeSource | None = None
    hostPath: HostPathVolumeSource | None = None


class PodSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """corev1.PodSpec."""

    nodeName: str = ""
    priority: int | None = None
    priorityClassName: str = ""
    hostNetwork: bool = False
    terminationGracePeriodSeconds: int | None = None
    containers: list[Container] = []
    initContainers: list[Container] | None = None
    volumes: list[Volume] | None = None
    overhead: dict[str, str | int | float] | None = None


class ContainerStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """corev1.ContainerStatus; containerID is `<runtime>://<id>`."""

    name: str = ""
    containerID: str = ""


class PodStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """corev1.PodStatus."""

    phase: str = ""
    qosClass: str = ""
    startTime: str | None = None
    containerStatuses: list[ContainerStatus] | None = None
    initContainerStatuses: list[ContainerStatus] | None = None
    ephemeralContainerStatuses: list[ContainerStatus] | None = None


class Pod(msgspec.Struct, frozen=True, omit_defaults=True):
    """corev1.Pod. `metadata.uid` names it; a pod without one is refused by the sources."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
    apiVersion: str = "v1"
    kind: str = "Pod"

    @property
    def uid(self) -> str:
        """metadata.uid."""
        return self.metadata.uid

    @property
    def key(self) -> str:
        """`namespace/name`, for people."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class NodeAddress(msgspec.Struct, frozen=True, omit_defaults=True):
    """corev1.NodeAddress; type is InternalIP, ExternalIP, Hostname, InternalDNS or ExternalDNS."""

    type: str = ""
    address: str = ""


class DaemonEndpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """corev1.DaemonEndpoint. The API spells this one field with a capital."""

    Port: int = 0


class NodeDaemonEndpoints(msgspec.Struct, frozen=True, omit_defaults=True):
    """corev1.NodeDaemonEndpoints."""

    kubeletEndpoint: DaemonEndpoint | None = None


class NodeStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """corev1.NodeStatus; quantities stay as written."""

    capacity: dict[str, str | int | float] | None = None
    allocatable: dict[str, str | int | float] | None = None
    addresses: list[NodeAddress] | None = None
    daemonEndpoints: NodeDaemonEndpoints | None = None


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """corev1.Node."""

    metadata: ObjectMeta
    status: NodeStatus = NodeStatus()
    apiVersion: str = "v1"
    kind: str = "Node"


class ConfigMap(msgspec.Struct, frozen=True, omit_defaults=True):
    """corev1.ConfigMap, its text data."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] | None = None


class ClusterState(msgspec.Struct, frozen=True):
    """What one source knows of this node, at one moment.

    `version` grows with every change, so that a reader can skip what it has already seen. `synced_at_ns`
    (CLOCK_MONOTONIC) is the last moment at which the source was sure that nothing newer existed: its age is the
    staleness that guards judge; each source documents its bound. `nodeslo` is the NodeSLO object and
    `slo_controller_config` the ConfigMap's data, both as received; `slo/` judges them.
    `problems` are sentences on what could not be read; what is held beside them is the last good value.
    """

    version: int
    synced_at_ns: int
    pods: tuple[Pod, ...] = ()
    node: Node | None = None
    nodeslo: msgspec.Raw | None = None
    slo_controller_config: dict[str, str] | None = None
    problems: tuple[str, ...] = ()
