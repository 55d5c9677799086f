"""The pods that a Katalyst agent last asked this plugin about, as a source: the plugin needs no API server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from koordebpf.errors import DecodeError
from koordebpf.kube.cache.objects import (
    ClusterState,
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

_MOST_PODS = 2000  # Why: four times what a kubelet may run


# Pods as a Katalyst agent gives them to a plugin: bytes of core/v1, of which what a decision needs is read.
#
# The bytes stay as they are: a plugin sends them back unchanged.
#
# Source: k8s.io/api core/v1 generated.proto; k8s.io/apimachinery meta/v1 and api/resource generated.proto.


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
        resources=_resources(found["resources"]),
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
        allocatedResources=_amounts(found["allocatedResources"]),
        resources=_resources(found["resources"]),
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


class GivenPods:
    """A source that is given its pods with each request. A pod that cannot be read is left out, with a sentence."""

    name = "plugin"

    def __init__(self) -> None:
        self._known: dict[bytes, Pod | str] = {}  # of the last request; a sentence: why it cannot be read
        self._state = ClusterState(version=0, synced_at_ns=0)

    def replace(self, pods: Sequence[bytes]) -> tuple[str | None, ...]:
        """Take the pods of a request for all that there are; return the UID of each, None: it cannot be read.

        None at all say nothing: older agents ask about thresholds without any.

        Raises:  DecodeError: there are too many.
        """
        known = self._read(pods)
        if pods:
            is_news = known.keys() != self._known.keys()
            self._known = known
            found = tuple(each for each in known.values() if isinstance(each, Pod))
            problems = tuple(each for each in known.values() if isinstance(each, str))
            version = self._state.version + (is_news or not self._state.version)
            self._state = ClusterState(version, time.monotonic_ns(), found, problems=problems)
        return self._uids(pods, known)

    def uids(self, pods: Sequence[bytes]) -> tuple[str | None, ...]:
        """Return the UID of each pod of a request that is about some of them.

        Raises:  DecodeError: there are too many.
        """
        return self._uids(pods, self._read(pods))

    def start(self, wake: Callable[[], None]) -> None:
        """Wait for the first request."""

    def refresh(self, now_ns: int) -> None:
        """Keep what the last request said."""

    def nudge(self) -> None:
        """Wait for the next request."""

    def state(self) -> ClusterState:
        """Return the pods of the last request."""
        return self._state

    def close(self) -> None:
        """There is nothing to close."""

    def _read(self, pods: Sequence[bytes]) -> dict[bytes, Pod | str]:
        if len(pods) > _MOST_PODS:
            raise DecodeError(f"{len(pods)} pods are more than {_MOST_PODS}")
        return {data: self._known.get(data) or _pod_or_problem(data) for data in pods}

    def _uids(self, pods: Sequence[bytes], known: dict[bytes, Pod | str]) -> tuple[str | None, ...]:
        found = [known[data] for data in pods]
        return tuple(each.uid if isinstance(each, Pod) else None for each in found)


def _pod_or_problem(data: bytes) -> Pod | str:
    try:
        return given_pod(data)
    except DecodeError as error:
        return f"a pod of the agent cannot be read: {error}"
