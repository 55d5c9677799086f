"""A node for block IO: pods with directories, disks, and a NodeSLO."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kube.cache.objects import ContainerStatus, ObjectMeta, Pod, PodSpec, PodStatus, Volume
from koordebpf.slo.strategies.resource_qos import ResourceQOSStrategy
from koordebpf.strategies.block_io.values import BLKIO_QOS_ANNOTATION, BlockIOMeasured, Disks, PodDirectories

FILES = tuple(each for each in CgroupFile if each.controller in ("blkio", "io"))
DEVICES: Mapping[str, Disks] = {"/dev/vdb": ("8:16",), "/dev/vdb1": ("8:16",), "/dev/mapper/wide-a": ("8:16", "8:32")}
GROUPS: Mapping[str, Disks] = {"wide": ("8:16", "8:32")}
TOP = "kubepods"


def qos(**classes: Any) -> ResourceQOSStrategy:
    """Return a strategy; each class as blocks that are enabled."""
    written = {name: {"blkioQOS": {"enable": True, "blocks": blocks}} for name, blocks in classes.items()}
    return msgspec.convert(written, ResourceQOSStrategy)


def block(name: str = "/dev/vdb", kind: str = "device", **fields: Any) -> dict[str, Any]:
    """Return one block as JSON has it."""
    return {"name": name, "type": kind, "ioCfg": fields}


def directory_of(name: str, kube_qos: str) -> str:
    """Return the directory of a pod."""
    above = {"BestEffort": f"{TOP}/besteffort/", "Burstable": f"{TOP}/burstable/", "Guaranteed": f"{TOP}/"}[kube_qos]
    return f"{above}pod{name}"


def pod_object(
    name: str, kube_qos: str = "BestEffort", *blocks: dict[str, Any], containers: int = 1, volumes: tuple[str, ...] = ()
) -> Pod:
    """Return a running pod, with an annotation where blocks are given."""
    annotations = {BLKIO_QOS_ANNOTATION: json.dumps({"blocks": blocks})} if blocks else None
    statuses = [ContainerStatus(f"c{at}", f"containerd://{name}-{at}") for at in range(containers)]
    return Pod(
        ObjectMeta(name=name, namespace="team", uid=name, annotations=annotations),
        PodSpec(volumes=[Volume(each) for each in volumes]),
        PodStatus("Running", qosClass=kube_qos, containerStatuses=statuses),
    )


def measured(
    *pods: Pod,
    version: int = 1,
    files: tuple[CgroupFile, ...] = FILES,
    volumes: Mapping[str, Mapping[str, Disks]] | None = None,
    **given: Any,
) -> BlockIOMeasured:
    """Return the node's directories: each container of these pods has one, and so has a sandbox."""
    found = []
    for pod in pods:
        path = directory_of(pod.uid, pod.status.qosClass or "")
        ids = [each.containerID.partition("://")[2] for each in pod.status.containerStatuses or ()]
        containers = {each: f"{path}/{each}" for each in [*ids, f"{pod.uid}-sandbox"]}
        found.append(PodDirectories(pod.uid, path, containers, (volumes or {}).get(pod.uid, {})))
    return BlockIOMeasured(
        version=version,  # type: ignore[arg-type]
        pods=tuple(found),
        directories={
            "BestEffort": f"{TOP}/besteffort", "Burstable": f"{TOP}/burstable", "Guaranteed": TOP,
        },
        files=files,
        devices=DEVICES,
        groups=GROUPS,
        **given,
    )  # fmt: skip
