"""Pods as protobuf, for plugins: as the API server has them, else the fields that the agent keeps of each.

Source: k8s.io/api core/v1, k8s.io/apimachinery pkg/apis/meta/v1, pkg/api/resource and pkg/runtime generated.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec

from koordebpf.errors import DecodeError
from koordebpf.kube.cache.objects import (
    Container,
    ContainerState,
    ContainerStatus,
    OwnerReference,
    Pod,
    ResourceRequirements,
    Volume,
)
from koordebpf.kube.clients.protobuf import Fields, decode, encode
from koordebpf.kube.plugins.messages import POD_MESSAGES

MAGIC: Final = b"k8s\x00"  # of every answer in protobuf, before a runtime.Unknown

_CONTAINERS: Final = "*Container"
POD_TABLE: Final[dict[str, Fields]] = {
    "Unknown": {"raw": (2, "bytes")},
    "PodList": {"items": (2, "*bytes")},
    "Pod": {"metadata": (1, "ObjectMeta"), "spec": (2, "PodSpec"), "status": (3, "PodStatus")},
    "Entry": {"key": (1, "string"), "value": (2, "string")},
    "Time": {"seconds": (1, "int64")},
    "OwnerReference": {"kind": (1, "string"), "name": (3, "string"), "uid": (4, "string"), "controller": (6, "?bool")},
    "ObjectMeta": {
        "name": (1, "string"),
        "namespace": (3, "string"),
        "uid": (5, "string"),
        "creationTimestamp": (8, "Time"),
        "deletionTimestamp": (9, "Time"),
        "deletionGracePeriodSeconds": (10, "?int64"),
        "labels": (11, "*Entry"),
        "annotations": (12, "*Entry"),
        "ownerReferences": (13, "*OwnerReference"),
    },
    "Quantity": {"string": (1, "string")},
    "Amount": {"key": (1, "string"), "value": (2, "Quantity")},
    "ResourceRequirements": {"limits": (1, "*Amount"), "requests": (2, "*Amount")},
    "Container": {
        "name": (1, "string"),
        "resources": (8, "ResourceRequirements"),
        "restartPolicy": (24, "?string"),
    },
    "HostPath": {"path": (1, "string")},
    "EmptyDir": {"medium": (1, "string"), "sizeLimit": (2, "Quantity")},
    "VolumeSource": {"hostPath": (1, "HostPath"), "emptyDir": (2, "EmptyDir")},
    "Volume": {"name": (1, "string"), "volumeSource": (2, "VolumeSource")},
    "PodSpec": {
        "volumes": (1, "*Volume"),
        "containers": (2, _CONTAINERS),
        "terminationGracePeriodSeconds": (4, "?int64"),
        "nodeName": (10, "string"),
        "hostNetwork": (11, "bool"),
        "hostIPC": (13, "bool"),
        "initContainers": (20, _CONTAINERS),
        "priorityClassName": (24, "string"),
        "priority": (25, "?int32"),
        "overhead": (32, "*Amount"),
    },
    "PodCondition": {"type": (1, "string"), "status": (2, "string"), "reason": (5, "string")},
    "StateDetails": {},
    "ContainerState": {
        "waiting": (1, "StateDetails"),
        "running": (2, "StateDetails"),
        "terminated": (3, "StateDetails"),
    },
    "ContainerStatus": {
        "name": (1, "string"),
        "state": (2, "ContainerState"),
        "containerID": (8, "string"),
        "allocatedResources": (10, "*Amount"),
        "resources": (11, "ResourceRequirements"),
    },
    "PodStatus": {
        "phase": (1, "string"),
        "conditions": (2, "*PodCondition"),
        "startTime": (7, "Time"),
        "containerStatuses": (8, "*ContainerStatus"),
        "qosClass": (9, "string"),
        "initContainerStatuses": (10, "*ContainerStatus"),
        "ephemeralContainerStatuses": (13, "*ContainerStatus"),
        "resize": (14, "string"),
    },
}


def pod_bytes(pod: Pod) -> bytes:
    """Return what the agent keeps of a Pod as protobuf; a time that is none is left out.

    Cost:    0.1 ms.
    """
    meta, spec, status = pod.metadata, pod.spec, pod.status
    return encode(
        POD_TABLE,
        "Pod",
        {
            "metadata": {
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
                "creationTimestamp": _time(meta.creationTimestamp),
                "deletionTimestamp": _time(meta.deletionTimestamp),
                "deletionGracePeriodSeconds": meta.deletionGracePeriodSeconds,
                "labels": _entries(meta.labels),
                "annotations": _entries(meta.annotations),
                "ownerReferences": [_owner(each) for each in meta.ownerReferences or ()],
            },
            "spec": {
                "volumes": [_volume(each) for each in spec.volumes or ()],
                "containers": [_container(each) for each in spec.containers],
                "terminationGracePeriodSeconds": spec.terminationGracePeriodSeconds,
                "nodeName": spec.nodeName,
                "hostNetwork": spec.hostNetwork,
                "hostIPC": spec.hostIPC,
                "initContainers": [_container(each) for each in spec.initContainers or ()],
                "priorityClassName": spec.priorityClassName,
                "priority": spec.priority,
                "overhead": _amounts(spec.overhead),
            },
            "status": {
                "phase": status.phase,
                "conditions": [msgspec.structs.asdict(each) for each in status.conditions or ()],
                "startTime": _time(status.startTime),
                "containerStatuses": _statuses(status.containerStatuses),
                "qosClass": status.qosClass,
                "initContainerStatuses": _statuses(status.initContainerStatuses),
                "ephemeralContainerStatuses": _statuses(status.ephemeralContainerStatuses),
                "resize": status.resize,
            },
        },
    )


def pods_of_list(answer: bytes) -> dict[str, bytes]:
    """Return the Pods of a list as the API server encodes it, by UID, each as it is.

    Raises:  DecodeError: it is no such list.
    """
    if not answer.startswith(MAGIC):
        raise DecodeError(f"the answer begins with {answer[:4]!r}, not with {MAGIC!r}")
    raw = decode(POD_TABLE, "Unknown", answer[len(MAGIC) :])["raw"]
    items = decode(POD_TABLE, "PodList", raw)["items"]
    return {uid: pod for pod in items if (uid := uid_of(pod))}


def uid_of(pod: bytes) -> str:
    """Return metadata.uid of a Pod, "" where it has none.

    Raises:  DecodeError: it is no Pod.
    """
    metadata = decode(POD_MESSAGES, "Pod", pod)["metadata"]
    return str(metadata["uid"]) if metadata else ""


def _time(of: str | None) -> dict[str, int] | None:
    if of is None:
        return None
    try:
        moment: datetime = msgspec.convert(of, Annotated[datetime, msgspec.Meta(tz=True)])
    except msgspec.ValidationError:
        return None
    return {"seconds": int(moment.timestamp())}


def _entries(of: Mapping[str, str] | None) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in (of or {}).items()]


def _amounts(of: Mapping[str, str | int | float] | None) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"string": str(value)}} for key, value in (of or {}).items()]


def _resources(of: ResourceRequirements | None) -> dict[str, Any] | None:
    return None if of is None else {"limits": _amounts(of.limits), "requests": _amounts(of.requests)}


def _container(of: Container) -> dict[str, Any]:
    return {"name": of.name, "resources": _resources(of.resources), "restartPolicy": of.restartPolicy}


def _volume(of: Volume) -> dict[str, Any]:
    empty, host = of.emptyDir, of.hostPath
    limit = None if empty is None or empty.sizeLimit is None else {"string": str(empty.sizeLimit)}
    source = {
        "hostPath": None if host is None else {"path": host.path},
        "emptyDir": None if empty is None else {"medium": empty.medium, "sizeLimit": limit},
    }
    return {"name": of.name, "volumeSource": source}


def _owner(of: OwnerReference) -> dict[str, Any]:
    return {"kind": of.kind, "name": of.name, "uid": of.uid, "controller": of.controller}


def _status(of: ContainerStatus) -> dict[str, Any]:
    return {
        "name": of.name,
        "state": None if of.state is None else _state(of.state),
        "containerID": of.containerID,
        "allocatedResources": _amounts(of.allocatedResources),
        "resources": _resources(of.resources),
    }


def _state(of: ContainerState) -> dict[str, Any]:
    return {name: {} for name in of.__struct_fields__ if getattr(of, name) is not None}


def _statuses(of: Iterable[ContainerStatus] | None) -> list[dict[str, Any]]:
    return [_status(each) for each in of or ()]
