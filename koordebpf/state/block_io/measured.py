"""What is read of a node for block IO: directories of pods, block devices, volumes, files. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.slo.strategies.resource_qos import ResourceQOSStrategy

Disks = tuple[str, ...]  # whole disks, by major:minor


class PodDirectories(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """The directory of a pod's own level, those of its containers by their id, and its volumes.

    Paths are below the mount. `volumes`: the disks of each volume that kubelet has mounted for the pod, by the name of
    its directory: that of a PersistentVolume, or of the volume in the spec where it is the pod's own.
    """

    uid: str
    path: str
    containers: Mapping[str, str] = {}
    volumes: Mapping[str, Disks] = {}


class BlockIOMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What block IO is decided from, of one moment; a round without it decides nothing of it.

    `version`       of the cgroup hierarchy that has the controller.
    `directories`   of the Kubernetes QoS classes, by class; Guaranteed has that of all pods.
    `files`         those that this kernel has in directories of classes, and in the root.
    `devices`       by path; `groups` by the name of an LVM volume group. Left out where nothing asks for them.
    `qos`           resourceQOSStrategy in force; None: there is no NodeSLO.
    """

    version: Literal[1, 2]
    pods: tuple[PodDirectories, ...] = ()
    directories: Mapping[str, str] = {}
    files: tuple[CgroupFile, ...] = ()
    devices: Mapping[str, Disks] = {}
    groups: Mapping[str, Disks] = {}
    qos: ResourceQOSStrategy | None = None


class BlockIOPod(msgspec.Struct, frozen=True, gc=False):
    """One running pod. `containers` are the paths of those that its status names; `annotation` as written.

    `spec_volumes` are the names of its volumes in the spec.
    """

    uid: str
    key: str
    path: str
    containers: tuple[str, ...] = ()
    annotation: str = ""
    volumes: Mapping[str, Disks] = {}
    spec_volumes: frozenset[str] = frozenset()


class BlockIOView(msgspec.Struct, frozen=True):
    """The node for block IO. `pods` are those that are running and have a directory."""

    measured: BlockIOMeasured
    pods: tuple[BlockIOPod, ...] = ()
