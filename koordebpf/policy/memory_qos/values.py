"""What memory QoS is decided by, and the values of one pod's fields with the place that each comes from."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.slo.strategies.resource_qos import MemoryQOS, ResourceQOSStrategy

GATE = "CgroupReconcile"


class MemoryQosRules(msgspec.Struct, frozen=True):
    """What is decided by, beside the pod.

    `qos`                resourceQOSStrategy of the NodeSLO in force; None: there is no NodeSLO.
    `files`              that a pod's directory has on this kernel.
    `allocatable_bytes`  memory of the Node; None: not known.
    `soft_limits`, `most_priority`, `weaker_annotations`  as MemoryQosSettings has them.
    """

    qos: ResourceQOSStrategy | None = None
    files: frozenset[CgroupFile] = frozenset()
    allocatable_bytes: int | None = None
    soft_limits: bool = False
    most_priority: int = 0
    weaker_annotations: bool = False


class PodQos(msgspec.Struct, frozen=True):
    """The fields that a pod has; one that is None leaves its files alone. `sources` says where each field is from."""

    fields: MemoryQOS = MemoryQOS()
    sources: Mapping[str, str] = {}
    problems: tuple[str, ...] = ()

    def source(self, field: str) -> str:
        """Return where a field is from, in words."""
        return self.sources.get(field, "")


NO_QOS = PodQos()
