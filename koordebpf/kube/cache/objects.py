"""The fields of Kubernetes objects that koordebpf reads, spelled as the API spells them.

Decoded straight from response bytes; unknown fields are skipped, and an object that is encoded again keeps what is
named here. Absent is None (or an empty container where the API says that is the same). JSON has no cycles, so
the garbage collector need not look at these: unseen by it a pod decodes in 6 µs in place of 10.
"""

from __future__ import annotations

from typing import Any

import msgspec

from koordebpf.kube.cache.cnr import CustomNodeResource


class OwnerReference(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """metav1.OwnerReference."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """metav1.ObjectMeta. Timestamps stay text, RFC 3339.

    Without resourceVersion: an object of which only that changed is no news, and kubelet's heartbeats change no more.
    """

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    ownerReferences: list[OwnerReference] | None = None
    creationTimestamp: str | None = None
    deletionTimestamp: str | None = None
    deletionGracePeriodSeconds: int | None = None


class VersionedMeta(ObjectMeta, frozen=True, omit_defaults=True, gc=False):
    """metav1.ObjectMeta of an object whose version is spoken of."""

    resourceVersion: str = ""


class ResourceRequirements(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """corev1.ResourceRequirements; quantities stay as written."""

    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class Container(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """corev1.Container."""

    name: str = ""
    resources: ResourceRequirements | None = None
    restartPolicy: str | None = None


class EmptyDirVolumeSource(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """corev1.EmptyDirVolumeSource; medium `Memory` is a tmpfs charged to the pod."""

    medium: str = ""
    sizeLimit: str | int | None = None


class HostPathVolumeSource(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """corev1.HostPathVolumeSource."""

    path: str = ""


class Volume(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """corev1.Volume, the sources that can be a tmpfs."""

    name: str = ""
    emptyDir: EmptyDirVolumeSource | None = None
    hostPath: HostPathVolumeSource | None = None


class PodSpec(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """corev1.PodSpec; `resources` are those of the pod's own level, since Kubernetes 1.34 by default."""

    nodeName: str = ""
    priority: int | None = None
    priorityClassName: str = ""
    hostNetwork: bool = False
    hostIPC: bool = False
    terminationGracePeriodSeconds: int | None = None
    containers: list[Container] = []
    initContainers: list[Container] | None = None
    volumes: list[Volume] | None = None
    overhead: dict[str, str | int | float] | None = None
    resources: ResourceRequirements | None = None


class StateDetails(msgspec.Struct, frozen=True, gc=False):
    """corev1.ContainerStateWaiting, Running or Terminated: nothing of it is kept."""


class ContainerState(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """corev1.ContainerState: one of the three is there."""

    waiting: StateDetails | None = None
    running: StateDetails | None = None
    terminated: StateDetails | None = None


class ContainerStatus(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """corev1.ContainerStatus; containerID is `<runtime>://<id>`.

    `allocatedResources` are the requests that the kubelet granted, `resources` what the container runs with.
    """

    name: str = ""
    containerID: str = ""
    allocatedResources: dict[str, str | int | float] | None = None
    resources: ResourceRequirements | None = None
    state: ContainerState | None = None


class PodCondition(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """corev1.PodCondition; status is True, False or Unknown."""

    type: str = ""
    status: str = ""
    reason: str = ""


class PodStatus(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """corev1.PodStatus; `allocatedResources` and `resources` are of the pod's own level, since Kubernetes 1.35."""

    phase: str = ""
    qosClass: str = ""
    conditions: list[PodCondition] | None = None
    resize: str = ""  # before Kubernetes 1.33
    startTime: str | None = None
    containerStatuses: list[ContainerStatus] | None = None
    initContainerStatuses: list[ContainerStatus] | None = None
    ephemeralContainerStatuses: list[ContainerStatus] | None = None
    allocatedResources: dict[str, str | int | float] | None = None
    resources: ResourceRequirements | None = None


class Pod(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """corev1.Pod. `metadata.uid` names it; a pod without one is refused by the sources.

    `notKept` is no field of the API: what of a pod that is too large is missing here, in words; empty: nothing.
    """

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
    apiVersion: str = "v1"
    kind: str = "Pod"
    notKept: str = ""

    @property
    def uid(self) -> str:
        """metadata.uid."""
        return self.metadata.uid

    @property
    def key(self) -> str:
        """`namespace/name`, for people."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class NodeStatus(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """corev1.NodeStatus; quantities stay as written."""

    capacity: dict[str, str | int | float] | None = None
    allocatable: dict[str, str | int | float] | None = None


class Node(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """corev1.Node."""

    metadata: ObjectMeta
    status: NodeStatus = NodeStatus()
    apiVersion: str = "v1"
    kind: str = "Node"


class Namespace(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """corev1.Namespace, its name and labels."""

    metadata: ObjectMeta
    apiVersion: str = "v1"
    kind: str = "Namespace"


class PodDisruptionBudgetSpec(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """policyv1.PodDisruptionBudgetSpec; the selector stays as written."""

    selector: dict[str, Any] | None = None
    unhealthyPodEvictionPolicy: str | None = None


class PodDisruptionBudgetStatus(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """policyv1.PodDisruptionBudgetStatus."""

    observedGeneration: int = 0
    disruptionsAllowed: int = 0
    currentHealthy: int = 0
    desiredHealthy: int = 0
    expectedPods: int = 0


class PodDisruptionBudget(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """policyv1.PodDisruptionBudget."""

    metadata: ObjectMeta
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()
    apiVersion: str = "policy/v1"
    kind: str = "PodDisruptionBudget"

    @property
    def key(self) -> str:
        """`namespace/name`, for people."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class NodeResourceTopology(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """topology.node.k8s.io/v1alpha1 NodeResourceTopology: its annotations, in which koordlet and kubelet place CPUs."""

    metadata: ObjectMeta = ObjectMeta()
    apiVersion: str = "topology.node.k8s.io/v1alpha1"
    kind: str = "NodeResourceTopology"


class ConfigMap(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """corev1.ConfigMap, its text data."""

    metadata: VersionedMeta = VersionedMeta()
    data: dict[str, str] | None = None


class ClusterState(msgspec.Struct, frozen=True):
    """What one source knows of this node, at one moment.

    `version` grows with every change, so that a reader can skip what it has already seen. `synced_at_ns`
    (CLOCK_MONOTONIC) is the last moment at which the source was sure that nothing newer existed: its age is the
    staleness that guards judge; each source documents its bound. `nodeslo` is the NodeSLO object and
    `slo_controller_config` the ConfigMap's data, both as received; `slo/` judges them.
    `pdbs` are the PodDisruptionBudgets of this node's namespaces; None: not read, or not needed.
    `namespaces` are those of this node's pods, for their labels; None: not read, or not needed.
    `namespaces_since_ns` is the last moment at which they were sure to be current; None: they are, as far as is known.
    `topology` is this node's NodeResourceTopology, where there is one.
    `cnr` is this node's CustomNodeResource, where there is one; None: there is none, or it is not needed.
    `is_denied`: the server is there, and does not let this agent read the pods, or no longer what it could read before.
    `problems` are sentences on what could not be read; what is held beside them is the last good value.
    """

    version: int
    synced_at_ns: int
    pods: tuple[Pod, ...] = ()
    node: Node | None = None
    nodeslo: msgspec.Raw | None = None
    slo_controller_config: dict[str, str] | None = None
    pdbs: tuple[PodDisruptionBudget, ...] | None = None
    topology: NodeResourceTopology | None = None
    cnr: CustomNodeResource | None = None
    namespaces: tuple[Namespace, ...] | None = None
    namespaces_since_ns: int | None = None
    is_denied: bool = False
    problems: tuple[str, ...] = ()
