"""What a runtime says of pods and containers, what is answered and counted; and messages of ttrpc and NRI.

Source: containerd/ttrpc request.proto; containerd/nri v0.11.0 pkg/api/api.proto, whose field numbers did not change
since v0.2.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from koordebpf.kube.clients.protobuf import Fields, decode, encode

PACKAGE = "nri.pkg.api.v1alpha1"
RUNTIME_SERVICE, PLUGIN_SERVICE = f"{PACKAGE}.Runtime", f"{PACKAGE}.Plugin"
# enum Event; a subscription has bit 1 << (event - 1).
EVENTS = {
    "RunPodSandbox": 1,
    "StopPodSandbox": 2,
    "RemovePodSandbox": 3,
    "CreateContainer": 4,
    "UpdateContainer": 8,
}
TTRPC_MESSAGES: dict[str, Fields] = {
    "Request": {
        "service": (1, "string"),
        "method": (2, "string"),
        "payload": (3, "bytes"),
        "timeout_nano": (4, "int64"),
    },
    "Status": {"code": (1, "int32"), "message": (2, "string")},
    "Response": {"status": (1, "Status"), "payload": (2, "bytes")},
}
NRI_MESSAGES: dict[str, Fields] = {
    "Empty": {},
    "Entry": {"key": (1, "string"), "value": (2, "string")},
    "OptionalInt64": {"value": (1, "int64")},
    "OptionalUInt64": {"value": (1, "uint64")},
    "LinuxMemory": {"limit": (1, "OptionalInt64"), "swap": (3, "OptionalInt64")},
    "LinuxCPU": {
        "shares": (1, "OptionalUInt64"),
        "quota": (2, "OptionalInt64"),
        "period": (3, "OptionalUInt64"),
        "cpus": (6, "string"),
    },
    "LinuxResources": {"memory": (1, "LinuxMemory"), "cpu": (2, "LinuxCPU")},
    "LinuxPodSandbox": {"cgroup_parent": (3, "string")},
    "PodSandbox": {
        "id": (1, "string"),
        "name": (2, "string"),
        "uid": (3, "string"),
        "namespace": (4, "string"),
        "labels": (5, "*Entry"),
        "annotations": (6, "*Entry"),
        "linux": (8, "LinuxPodSandbox"),
    },
    "LinuxContainer": {"resources": (3, "LinuxResources"), "cgroups_path": (5, "string")},
    "Container": {
        "id": (1, "string"),
        "pod_sandbox_id": (2, "string"),
        "name": (3, "string"),
        "labels": (5, "*Entry"),
        "annotations": (6, "*Entry"),
        "linux": (11, "LinuxContainer"),
    },
    "RegisterPluginRequest": {"plugin_name": (1, "string"), "plugin_idx": (2, "string")},
    "ConfigureRequest": {
        "config": (1, "string"),
        "runtime_name": (2, "string"),
        "runtime_version": (3, "string"),
        "registration_timeout": (4, "int64"),
        "request_timeout": (5, "int64"),
    },
    "ConfigureResponse": {"events": (2, "int32")},
    # Its pods and containers may be megabytes, and nothing of them is read: the reconciler corrects those that run.
    "SynchronizeRequest": {"more": (3, "bool")},
    "ContainerUpdate": {
        "container_id": (1, "string"),
        "linux": (2, "LinuxContainerUpdate"),
        "ignore_failure": (3, "bool"),
    },
    "LinuxContainerUpdate": {"resources": (1, "LinuxResources")},
    "SynchronizeResponse": {"update": (1, "*ContainerUpdate"), "more": (2, "bool")},
    "ContainerRequest": {"pod": (1, "PodSandbox"), "container": (2, "Container")},  # of CreateContainer and others
    "LinuxContainerAdjustment": {"resources": (2, "LinuxResources"), "oom_score_adj": (4, "OptionalInt64")},
    "ContainerAdjustment": {"linux": (6, "LinuxContainerAdjustment")},
    "CreateContainerResponse": {"adjust": (1, "ContainerAdjustment"), "update": (2, "*ContainerUpdate")},
    "UpdateContainerResponse": {"update": (1, "*ContainerUpdate")},
    "StateChangeEvent": {"event": (1, "int32"), "pod": (2, "PodSandbox")},
}
BUCKETS_MS = (0.01, 0.04, 0.16, 0.64, 2.0, 2.56, 5.0, 10.24, 40.96, 163.84, 2000.0)
_MOST_PROBLEMS = 64  # that wait to be logged. Why: a second's worth; more of a second say nothing new


"""Upper bounds: koordlet's, 2 and 5 ms as answers may take at most, and the 2 s that a runtime waits."""


class Calls(msgspec.Struct, frozen=True, gc=False):
    """Calls of one method with one result: how many in each bucket (the last has no bound), and their sum."""

    buckets: tuple[int, ...] = (0,) * (len(BUCKETS_MS) + 1)
    sum_ms: float = 0.0


class NriCounts:
    """Counters of one plugin since its start. Values are replaced as a whole."""

    def __init__(self) -> None:
        self.registrations = 0  # that a runtime has completed
        self.adjusted = 0  # containers whose resources were adjusted
        self.errors = 0
        self._calls: dict[tuple[str, bool], Calls] = {}
        self._problems: deque[str] = deque(maxlen=_MOST_PROBLEMS)

    @property
    def calls(self) -> Mapping[tuple[str, bool], Calls]:
        """Calls by method and whether they succeeded."""
        return self._calls.copy()

    def took(self, method: str, took_ms: float, *, is_ok: bool) -> None:
        """Count one call."""
        before = self._calls.get((method, is_ok), Calls())
        at = bisect_left(BUCKETS_MS, took_ms)
        buckets = (*before.buckets[:at], before.buckets[at] + 1, *before.buckets[at + 1 :])
        self._calls[method, is_ok] = Calls(buckets, before.sum_ms + took_ms)

    def failed(self, sentence: str) -> None:
        """Count one error. Nothing is logged here: a log may wait."""
        self.errors += 1
        self._problems.append(sentence)

    def drain_problems(self) -> tuple[str, ...]:
        """Return the sentences since the last time, once; from another thread."""
        found = []
        while self._problems:
            found.append(self._problems.popleft())
        return tuple(dict.fromkeys(found))


class NriPod(msgspec.Struct, frozen=True, gc=False):
    """A pod as the runtime knows it: what the kubelet passed with RunPodSandbox, so no spec."""

    name: str
    uid: str
    namespace: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    cgroup_parent: str


class NriContainer(msgspec.Struct, frozen=True, gc=False):
    """A container as the runtime knows it, with the resources that the kubelet asks for; None: it asks for none."""

    id: str
    name: str
    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    memory_limit_bytes: int | None = None


class NriResources(msgspec.Struct, frozen=True, gc=False):
    """Resources that a container is to have. None: as the kubelet asks for; -1: no limit."""

    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpuset_cpus: str | None = None
    memory_limit_bytes: int | None = None
    oom_score_adj: int | None = None  # only of a container that is created


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What a container gets. `resources` None: nothing else than it asks for; `problems`: what could not be read."""

    resources: NriResources | None = None
    problems: tuple[str, ...] = ()


class Answering(Protocol):
    """Decides what a container gets. It is called in the thread of the connection and must neither wait nor lock.

    An error of it is answered by the failure policy.
    """

    def pod_started(self, pod: NriPod) -> None:
        """Take note of a pod whose cgroup the runtime is about to use."""

    def pod_removed(self, pod: NriPod) -> None:
        """Take note of a pod that is gone."""

    def container(self, pod: NriPod, container: NriContainer) -> Answer:
        """Return what a container that is created or updated is to have."""


def judged(answering: Answering, pod: NriPod, container: NriContainer) -> Answer:
    """Return what a container gets; an error of `answering` is a problem of that container alone."""
    try:
        return answering.container(pod, container)
    except Exception as error:
        return Answer(problems=(problem_of(pod, error),))


def problem_of(pod: NriPod, error: Exception) -> str:
    """Return what is wrong with a pod, as a sentence."""
    return f"pod {pod.namespace[:63]}/{pod.name[:63]}: {error}"


def pod_of(message: Mapping[str, Any] | None) -> NriPod:
    """Return the pod of a decoded message; one without a pod is empty."""
    given = message or decode(NRI_MESSAGES, "PodSandbox", b"")
    linux = given["linux"] or {}
    return NriPod(
        name=given["name"],
        uid=given["uid"],
        namespace=given["namespace"],
        labels=mapping_of(given["labels"]),
        annotations=mapping_of(given["annotations"]),
        cgroup_parent=linux.get("cgroup_parent", ""),
    )


def container_of(message: Mapping[str, Any] | None) -> NriContainer:
    """Return the container of a decoded message."""
    given = message or decode(NRI_MESSAGES, "Container", b"")
    resources = (given["linux"] or {}).get("resources") or {}
    cpu, memory = resources.get("cpu") or {}, resources.get("memory") or {}
    return NriContainer(
        id=given["id"],
        name=given["name"],
        cpu_shares=_number(cpu.get("shares")),
        cpu_quota_us=_number(cpu.get("quota")),
        cpu_period_us=_number(cpu.get("period")),
        memory_limit_bytes=_number(memory.get("limit")),
    )


def create_answer(wanted: NriResources | None) -> bytes:
    """Return a CreateContainerResponse; an empty one adjusts nothing."""
    if wanted is None:
        return b""
    linux = {"resources": _resources(wanted), "oom_score_adj": _optional(wanted.oom_score_adj)}
    return encode(NRI_MESSAGES, "CreateContainerResponse", {"adjust": {"linux": linux}})


def update_answer(container_id: str, wanted: NriResources | None) -> bytes:
    """Return an UpdateContainerResponse for the container that is updated; an empty one leaves the update as it is."""
    if wanted is None:
        return b""
    update = {"container_id": container_id, "linux": {"resources": _resources(wanted)}}
    return encode(NRI_MESSAGES, "UpdateContainerResponse", {"update": [update]})


def mapping_of(entries: list[dict[str, str]]) -> dict[str, str]:
    """Return a map of protobuf, whose entries have a key and a value each."""
    return {each["key"]: each["value"] for each in entries}


def _resources(wanted: NriResources) -> dict[str, Any]:
    cpu: dict[str, Any] = {
        "shares": _optional(wanted.cpu_shares),
        "quota": _optional(wanted.cpu_quota_us),
        "cpus": wanted.cpuset_cpus or "",
    }
    resources: dict[str, Any] = {}
    if any(value not in (None, "") for value in cpu.values()):
        resources["cpu"] = cpu
    if wanted.memory_limit_bytes is not None:
        resources["memory"] = {"limit": _optional(wanted.memory_limit_bytes)}
    return resources


def _optional(value: int | None) -> dict[str, int] | None:
    return None if value is None else {"value": value}


def _number(optional: Mapping[str, int] | None) -> int | None:
    return None if optional is None else optional["value"]
