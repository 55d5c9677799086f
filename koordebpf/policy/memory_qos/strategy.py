"""CgroupReconcile, koordlet's memory QoS: protects what pods request, and throttles what is above it.

Source: koordinator pkg/koordlet/qosmanager/plugins/cgreconcile.
"""

from __future__ import annotations

from collections.abc import Mapping

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.hooks.writes import paths_of
from koordebpf.policy.memory_qos.settings import MemoryQosSettings
from koordebpf.policy.memory_qos.values import GATE, MemoryQosRules
from koordebpf.policy.memory_qos.writes import LOW, MIN, PodWrites, directory_writes, pod_writes, protects
from koordebpf.policy.reconcile.values import CgroupWrite
from koordebpf.policy.strategy import Decision, Empty, Strategy
from koordebpf.state.hooks.measured import PodDirectory
from koordebpf.state.memory_qos.measured import MemoryQosMeasured, MemoryQosView
from koordebpf.state.memory_qos.pods import MemoryPod
from koordebpf.state.memory_qos.view import memory_qos_view
from koordebpf.state.view import NodeView


class MemoryQosDecision(Decision[Empty], frozen=True, kw_only=True):
    """The decision with what of the node's objects cannot be used, and the rules that it was made by.

    `protected_bytes`  of the Kubernetes QoS directories, by the file's name, then by the class.
    """

    problems: tuple[str, ...] = ()
    protected_bytes: Mapping[str, Mapping[str, int]] = {}
    rules: MemoryQosRules = MemoryQosRules()


def memory_qos_rules(view: MemoryQosView, settings: MemoryQosSettings) -> MemoryQosRules:
    """Return the rules that a node's pods are decided by."""
    known = set(CgroupFile)
    return MemoryQosRules(
        qos=view.measured.qos,
        files=frozenset(CgroupFile(name) for name in view.measured.files if name in known),
        allocatable_bytes=view.allocatable_bytes,
        soft_limits=settings.soft_limits,
        most_priority=settings.most_priority,
        weaker_annotations=settings.weaker_annotations,
    )


class WantedOfNode:
    """Works out what is wanted, and remembers it of each pod for as long as the pod and the rules stay the same."""

    def __init__(self) -> None:
        self._rules = MemoryQosRules()
        self._pods: dict[str, tuple[MemoryPod, PodDirectory, PodWrites]] = {}
        self._parts: tuple[PodWrites, ...] = ()
        self._writes: tuple[CgroupWrite, ...] = ()

    def of(self, view: MemoryQosView, rules: MemoryQosRules) -> tuple[tuple[CgroupWrite, ...], tuple[str, ...]]:
        """Return the files, and sentences on what cannot be used; equal arguments have equal answers.

        Cost:    1 µs a pod that stays the same, else 60 µs.
        """
        if rules != self._rules:
            self._rules, self._pods = rules, {}
        directories = {each.uid: each for each in view.measured.pods}
        pods: dict[str, tuple[MemoryPod, PodDirectory, PodWrites]] = {}
        for pod in view.pods:
            directory, known = directories[pod.uid], self._pods.get(pod.uid)
            if known is None or known[0] is not pod or known[1] != directory:
                known = pod, directory, pod_writes(pod, directory, self._rules)
            pods[pod.uid] = known
        self._pods = pods
        made = tuple(each for _, _, each in pods.values())
        parts = (directory_writes(view, made, self._rules), *made)
        if parts != self._parts:
            self._parts = parts
            self._writes = tuple(each.write for part in parts for each in part.writes)
        return self._writes, tuple(problem for part in self._parts for problem in part.problems)


def _protected(view: MemoryQosView, writes: tuple[CgroupWrite, ...]) -> dict[str, dict[str, int]]:
    classes = {path: kube_qos for kube_qos, path in view.measured.directories.items()}
    protected: dict[str, dict[str, int]] = {}
    for each in writes[: len(classes) * len(CgroupFile)]:  # theirs come first
        if each.path in classes and each.file in (MIN, LOW) and isinstance(each.value, int):
            protected.setdefault(each.file.value, {})[classes[each.path]] = each.value
    return protected


_WANTED = WantedOfNode()


class MemoryQos(Strategy[MemoryQosMeasured, Empty, MemoryQosSettings]):
    """Asked each 10 s, and at once when a pod, the NodeSLO or a cgroup changes."""

    name = "memoryQos"
    gate = GATE
    summary = "protect the memory that pods request, throttle what is above it"
    measured = MemoryQosMeasured
    settings = MemoryQosSettings
    state = Empty

    def decide(
        self, view: NodeView, measured: MemoryQosMeasured | None, state: Empty, settings: MemoryQosSettings
    ) -> MemoryQosDecision:
        """Return what is wanted of pods, containers and the directories above them.

        Skips:   not_due: what was written before stays.
        """
        if measured is None:
            return MemoryQosDecision(state=state, reason="memory QoS is not due", skipped="not_due")
        node = memory_qos_view(measured, view.facts, view.frame.node)
        rules = memory_qos_rules(node, settings)
        writes, problems = _WANTED.of(node, rules)
        if protects(rules) and rules.files and not rules.soft_limits and CgroupFile.MEMORY_MIN not in rules.files:
            problems = (*problems, "cgroup v1 has no memory.min and low: strategies.memoryQos.softLimits is near them")
        return MemoryQosDecision(
            state=state,
            reason=f"memory QoS: {paths_of(writes)} cgroups",
            writes=writes,
            problems=problems,
            protected_bytes=_protected(node, writes),
            rules=rules,
        )


MEMORY_QOS = MemoryQos()
