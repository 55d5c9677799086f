"""What block IO is set by, what an annotation asks for, what is measured, and the node as it is decided from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.slo.strategies.resource_qos import Block, ResourceQOSStrategy
from koordebpf.state.pods.facts import PodFacts

Share = Literal["divide", "each", "directory"]
BLKIO_QOS_ANNOTATION = "koordinator.sh/blkioQOS"
MAX_BLOCKS = 32  # Why: more than a pod has volumes; an annotation may have 256 KiB
_MAX_CHARS = 32 << 10
_PATH = f"annotation {BLKIO_QOS_ANNOTATION}"
Disks = tuple[str, ...]  # whole disks, by major:minor


class BlockIOSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of BlkIOReconcile.

    `v1_share`    how a limit of a directory is kept on cgroup v1, whose kernel knows no limit of a tree: divide gives
                  each container of it an equal part, each gives every container the whole limit, directory writes the
                  directory alone, as koordlet. Why divide: all together stay below the limit; directory has no effect
                  on a mainline kernel.
    `kubelet_dir` kubelet's --root-dir, below which the volumes of pods are mounted. Why: kubelet's default.
    """

    v1_share: Share = "divide"
    kubelet_dir: str = "/var/lib/kubelet"


# What a pod's annotation asks for of block devices: limits of its own.
#
# Source: koordinator apis/slo/v1alpha1, AnnotationPodBlkioQoS and BlkIOQOS.


class _BlkIOQOS(msgspec.Struct):
    blocks: tuple[Block, ...] | None = None


def annotated_blocks(text: str) -> tuple[Block, ...]:
    """Return the blocks that an annotation names; an empty one names none.

    Raises:  ConfigError: it is not of its form, too long, or has too many.
    """
    if not text:
        return ()
    if len(text) > _MAX_CHARS:
        raise ConfigError(_PATH, text[:80], f"must be no longer than {_MAX_CHARS} characters")
    try:
        blocks = decoder(_BlkIOQOS).decode(text).blocks or ()
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise ConfigError(_PATH, text[:80], str(error)) from None
    if len(blocks) > MAX_BLOCKS:
        raise ConfigError(f"{_PATH}: blocks", len(blocks), f"must be {MAX_BLOCKS} at the most")
    return blocks


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


def block_io_view(measured: BlockIOMeasured, pods: Iterable[PodFacts]) -> BlockIOView:
    """Return the node as block IO sees it. The same arguments give an equal view.

    Cost:    2 µs a pod.
    """
    known = {facts.uid: facts for facts in pods if facts.phase == "Running"}
    return BlockIOView(measured, tuple(_pod(known[each.uid], each) for each in measured.pods if each.uid in known))


# A sandbox does no IO, and is in no status: it takes no share of a limit.
def _pod(facts: PodFacts, directories: PodDirectories) -> BlockIOPod:
    meta, spec, status = facts.pod.metadata, facts.pod.spec, facts.pod.status
    statuses = (*(status.containerStatuses or ()), *(status.initContainerStatuses or ()))
    ids = {each.containerID.partition("://")[2] for each in statuses}
    return BlockIOPod(
        uid=facts.uid,
        key=f"{facts.namespace}/{facts.name}",
        path=directories.path,
        containers=tuple(sorted(path for id, path in directories.containers.items() if id in ids)),
        annotation=(meta.annotations or {}).get(BLKIO_QOS_ANNOTATION, ""),
        volumes=directories.volumes,
        spec_volumes=frozenset(each.name for each in spec.volumes or ()),
    )
