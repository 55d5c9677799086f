"""What a runtime says of pods and containers, what is answered, and what is counted, apart from the wire."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from koordebpf.kube.clients.protobuf import decode, encode
from koordebpf.kube.nri.messages import NRI_MESSAGES

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

    def take_problems(self) -> tuple[str, ...]:
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
