"""Pods as a Katalyst agent gives them to a plugin: bytes of core/v1, of which what a decision needs is read.

The bytes stay as they are: a plugin sends them back unchanged.

Source: k8s.io/api core/v1 generated.proto; k8s.io/apimachinery meta/v1 and api/resource generated.proto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from koordebpf.errors import DecodeError
from koordebpf.kube.cache.objects import (
    Container,
    ContainerState,
    ContainerStatus,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    StateDetails,
    Volume,
)
from koordebpf.kube.clients.protobuf import decode
from koordebpf.kube.plugins.pods import POD_TABLE


def given_pod(data: bytes) -> Pod:
    """Return what is read of a Pod.

    Raises:  DecodeError: it is no Pod, or one without a UID.
    Cost:    0.2 ms.
    """
    found = decode(POD_TABLE, "Pod", data)
    metadata = found["metadata"]
    if metadata is None or not metadata["uid"]:
        raise DecodeError("a pod without a metadata.uid")
    return Pod(_metadata(metadata), _spec(found["spec"] or {}), _status(found["status"] or {}))


def _metadata(found: Mapping[str, Any]) -> ObjectMeta:
    return ObjectMeta(
        name=found["name"],
        namespace=found["namespace"],
        uid=found["uid"],
        labels=_texts(found["labels"]),
        annotations=_texts(found["annotations"]),
        ownerReferences=[
            OwnerReference(each["kind"], each["name"], each["uid"], each["controller"])
            for each in found["ownerReferences"]
        ]
        or None,
        creationTimestamp=_time(found["creationTimestamp"]),
        deletionTimestamp=_time(found["deletionTimestamp"]),
    )


def _spec(found: Mapping[str, Any]) -> PodSpec:
    if not found:
        return PodSpec()
    return PodSpec(
        nodeName=found["nodeName"],
        priority=found["priority"],
        priorityClassName=found["priorityClassName"],
        hostNetwork=found["hostNetwork"],
        hostIPC=found["hostIPC"],
        terminationGracePeriodSeconds=found["terminationGracePeriodSeconds"],
        containers=_containers(found["containers"]),
        initContainers=_containers(found["initContainers"]) or None,
        volumes=[_volume(each) for each in found["volumes"]] or None,
        overhead=_amounts(found["overhead"]),
    )


def _status(found: Mapping[str, Any]) -> PodStatus:
    if not found:
        return PodStatus()
    return PodStatus(
        phase=found["phase"],
        qosClass=found["qosClass"],
        conditions=[PodCondition(each["type"], each["status"], each["reason"]) for each in found["conditions"]] or None,
        resize=found["resize"],
        startTime=_time(found["startTime"]),
        containerStatuses=_statuses(found["containerStatuses"]),
        initContainerStatuses=_statuses(found["initContainerStatuses"]),
    )


def _containers(found: Sequence[Mapping[str, Any]]) -> list[Container]:
    return [Container(each["name"], _resources(each["resources"]), each["restartPolicy"] or None) for each in found]


def _resources(found: Mapping[str, Any] | None) -> ResourceRequirements | None:
    if found is None:
        return None
    return ResourceRequirements(requests=_amounts(found["requests"]), limits=_amounts(found["limits"]))


def _volume(found: Mapping[str, Any]) -> Volume:
    source = found["volumeSource"] or {}
    empty, host = source.get("emptyDir"), source.get("hostPath")
    return Volume(
        found["name"],
        None if empty is None else EmptyDirVolumeSource(empty["medium"], _quantity(empty["sizeLimit"])),
        None if host is None else HostPathVolumeSource(host["path"]),
    )


def _statuses(found: Sequence[Mapping[str, Any]]) -> list[ContainerStatus] | None:
    return [
        ContainerStatus(
            each["name"],
            each["containerID"],
            _amounts(each["allocatedResources"]),
            _resources(each["resources"]),
            _state(each["state"]),
        )
        for each in found
    ] or None


def _state(found: Mapping[str, Any] | None) -> ContainerState | None:
    if found is None:
        return None
    return ContainerState(**{name: StateDetails() for name, details in found.items() if details is not None})


def _texts(found: Sequence[Mapping[str, str]]) -> dict[str, str] | None:
    return {each["key"]: each["value"] for each in found} or None


def _amounts(found: Sequence[Mapping[str, Any]]) -> dict[str, str | int | float] | None:
    return {each["key"]: _quantity(each["value"]) or "0" for each in found} or None


def _quantity(found: Mapping[str, str] | None) -> str | None:
    return None if found is None else found["string"]


def _time(found: Mapping[str, int] | None) -> str | None:
    if found is None:
        return None
    try:
        return datetime.fromtimestamp(found["seconds"], UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, OSError, ValueError) as error:
        raise DecodeError(f"the time {found['seconds']} is none") from error
