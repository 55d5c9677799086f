"""What is read of a node for memory QoS: directories, what protects those above, and which files there are."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.slo.strategies.resource_qos import ResourceQOSStrategy
from koordebpf.state.hooks.measured import PodDirectory
from koordebpf.state.memory_qos.pods import MemoryPod


class Protection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """memory.min and memory.low of one directory, in bytes; None: all of its memory (max)."""

    path: str
    min_bytes: int | None = 0
    low_bytes: int | None = 0


class MemoryQosMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What memory QoS decides from, of one moment; a round without it decides nothing of it.

    `pods`         with their directories, below the mount of the memory controller.
    `directories`  of the Kubernetes QoS classes, by class; Guaranteed has that of all pods.
    `above`        the directories above that of all pods, the highest first.
    `files`        that a pod's directory has, by the names of cgroup v1.
    `qos`          resourceQOSStrategy in force; None: there is no NodeSLO.
    """

    pods: tuple[PodDirectory, ...] = ()
    directories: Mapping[str, str] = {}
    above: tuple[Protection, ...] = ()
    files: tuple[str, ...] = ()
    qos: ResourceQOSStrategy | None = None


class MemoryQosView(msgspec.Struct, frozen=True):
    """The node for memory QoS. `pods` are those that are pending or running and have a directory.

    `allocatable_bytes`  memory of the Node; None: not known.
    """

    measured: MemoryQosMeasured
    pods: tuple[MemoryPod, ...]
    allocatable_bytes: int | None = None
