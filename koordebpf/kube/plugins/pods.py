"""Pods as protobuf, for plugins: as the API server has them, else the fields that the agent keeps of each.

Source: k8s.io/api core/v1, k8s.io/apimachinery pkg/apis/meta/v1, pkg/api/resource and pkg/runtime generated.proto.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec

from koordebpf.errors import DecodeError, KubeError, KubeTooLarge
from koordebpf.kernel.io.worker import Supervisor
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
from koordebpf.kube.http.transport import Transport
from koordebpf.kube.plugins.messages import POD_MESSAGES

log = logging.getLogger(__name__)
PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
_ANSWER_S: Final = 5.0
_REST_S: Final = 5.0  # Why: as often as plugins are called; a node whose pods change all the time asks no more often
_RESTS: Final = 10  # times what the list took
_CLOSE_S: Final = 1.0
_PAGE_BYTES: Final = 4 << 20  # of an answer; where it has more, pages are asked for
_PAGE: Final = 100
_WHOLE_BYTES: Final = 128 << 10  # Why: ten times a large pod; any tenant may make one of 1.4 MB, or sixty
MAGIC: Final = b"k8s\x00"  # of every answer in protobuf, before a runtime.Unknown
_CONTAINERS: Final = "*Container"
POD_TABLE: Final[dict[str, Fields]] = {
    "Unknown": {"raw": (2, "bytes")},
    "PodList": {"metadata": (1, "ListMeta"), "items": (2, "*bytes")},
    "ListMeta": {"continue": (3, "string")},
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
        "resources": (40, "ResourceRequirements"),
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
        "allocatedResources": (19, "*Amount"),
        "resources": (20, "ResourceRequirements"),
    },
}


class PodMessages:
    """Each pod as protobuf: from a list of the API server, or what the agent keeps of it where that does not have it.

    Args:
        transport: to the API server, closed with this; None: only what the agent keeps is known.
        node_name: of this node.
        rest_s: between two lists.
    """

    def __init__(self, transport: Transport | None, node_name: str, rest_s: float = _REST_S) -> None:
        self.problem: str | None = None  # why the last list was not read
        self._transport = transport
        self._query = {"fieldSelector": f"spec.nodeName={node_name}", "resourceVersion": "0"}
        self._rest_s = rest_s
        self._listed: dict[str, bytes] = {}  # replaced as a whole
        self._version = 0  # of the cluster's state, as of the last list
        self._wanted = threading.Event()
        self._ends = threading.Event()
        self._supervisor = Supervisor("plugin-pods")
        self._thread: threading.Thread | None = None

    def of(self, pods: Iterable[Pod], version: int) -> dict[str, bytes]:
        """Return the pods by UID, and let the list be read again where the cluster's state has another version.

        Does not wait: what has changed since the last list is in the next one.
        """
        if self._transport is not None and version != self._version:
            self._version = version
            self._wanted.set()
            if self._thread is None:
                self._thread = self._supervisor.thread(functools.partial(self._run, self._transport))
                self._thread.start()
        listed = self._listed
        return {pod.uid: listed.get(pod.uid) or pod_bytes(pod) for pod in pods}

    def close(self) -> None:
        """End the thread, and a request that it waits for."""
        self._ends.set()
        self._wanted.set()
        if self._transport is not None:
            self._transport.close()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _run(self, transport: Transport) -> None:
        while not self._ends.is_set():
            self._wanted.wait()
            self._wanted.clear()
            if self._ends.is_set():
                return
            began_s = time.monotonic()
            if not self._supervisor.call(functools.partial(self._read, transport)):
                self.problem = self._supervisor.problem
                self._wanted.set()
            # Tenants may make lists long: most of the time none is read.
            self._ends.wait(max(self._rest_s, _RESTS * (time.monotonic() - began_s)))

    def _read(self, transport: Transport) -> None:
        problem = None
        try:
            self._listed = self._list(transport)
        except (KubeError, DecodeError) as error:
            problem = str(error)
            self._wanted.set()
        if problem not in (None, self.problem):
            log.warning("plugins are given only what the agent keeps of new pods: %s", problem)
        self.problem = problem

    def _list(self, transport: Transport) -> dict[str, bytes]:
        try:
            return pods_of_list(self._answer(transport, self._query))[0]
        except KubeTooLarge:
            return self._pages(transport)

    # Each from the state that the first is of; a server that keeps it no longer says so, and all are asked for again.
    def _pages(self, transport: Transport) -> dict[str, bytes]:
        listed: dict[str, bytes] = {}
        query, limit = {"fieldSelector": self._query["fieldSelector"]}, _PAGE
        while True:
            try:
                answer = self._answer(transport, query | {"limit": str(limit)})
            except KubeTooLarge:
                if limit == 1:
                    raise
                limit = max(limit // 4, 1)
                continue
            found, query["continue"] = pods_of_list(answer)
            listed |= found
            if not query["continue"]:
                return listed

    def _answer(self, transport: Transport, query: Mapping[str, str]) -> bytes:
        return transport.get(
            "/api/v1/pods", query, verb="list", resource="pods", timeout_s=_ANSWER_S, max_bytes=_PAGE_BYTES,
            accept=PROTOBUF,
        )  # fmt: skip


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
                "resources": _resources(spec.resources),
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
                "allocatedResources": _amounts(status.allocatedResources),
                "resources": _resources(status.resources),
            },
        },
    )


def pods_of_list(answer: bytes) -> tuple[dict[str, bytes], str]:
    """Return the Pods of a list as the API server encodes it, by UID, each as it is, and what continues the list.

    A pod of more than 128 KiB is left out: plugins are given what the agent keeps of it.

    Raises:  DecodeError: it is no such list.
    """
    if not answer.startswith(MAGIC):
        raise DecodeError(f"the answer begins with {answer[:4]!r}, not with {MAGIC!r}")
    raw = decode(POD_TABLE, "Unknown", answer[len(MAGIC) :])["raw"]
    listed = decode(POD_TABLE, "PodList", raw)
    pods = {uid: pod for pod in listed["items"] if len(pod) <= _WHOLE_BYTES and (uid := uid_of(pod))}
    return pods, str((listed["metadata"] or {}).get("continue", ""))


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
