"""Cluster state as last reported by the source, decoded once per change: pod facts, merged strategy, problems."""

from __future__ import annotations

from koordebpf.errors import ConfigError
from koordebpf.kube.cache.objects import ClusterState, Namespace, Node, NodeResourceTopology, PodDisruptionBudget
from koordebpf.quantity import quantity_bytes, quantity_millicpu
from koordebpf.slo.lint import strategy_doubts
from koordebpf.slo.manager.keys import THRESHOLD_KEY
from koordebpf.slo.manager.shapes import unknown_in_config, unknown_in_nodeslo
from koordebpf.slo.spec import NodeSLOSpec, parse_spec, spec_of_configmap
from koordebpf.slo.strategies.host_applications import host_directories
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.build import allocatable_memory, capacity_doubt, node_capacity_bytes
from koordebpf.state.cpu.view import allocatable_cpu
from koordebpf.state.pods.facts import PodFacts, pod_facts
from koordebpf.state.view import NodeMeasure
from koordebpf.units import format_ns


def check_configuration(state: ClusterState) -> None:
    """Let a first state pass only if its Node and its NodeSLO can be used: there is no last good one yet.

    Raises:  ConfigError: one of them has a value of a wrong type.
    """
    _checked_node(state)
    _, problems, _ = _spec(state, None)
    for problem in problems:
        raise problem


def _checked_node(state: ClusterState) -> Node | None:
    node = state.node
    capacity = (node.status.capacity if node else None) or {}
    for name, quantity in (("memory", quantity_bytes), ("cpu", quantity_millicpu)):
        if name in capacity:
            quantity(capacity[name], f"node.status.capacity.{name}")
    allocatable_memory(node)
    allocatable_cpu(node)
    return node


def _spec(
    state: ClusterState, last: NodeSLOSpec | None
) -> tuple[NodeSLOSpec | None, tuple[ConfigError, ...], tuple[str, ...]]:
    # The NodeSLO takes precedence: koordlet reads it. The ConfigMap is its source for a node without manager.
    if state.nodeslo is not None:
        return *parse_spec(state.nodeslo, last), tuple(map(str, unknown_in_nodeslo(state.nodeslo)))
    if state.slo_controller_config is not None:
        meta = state.node.metadata if state.node else None
        labels, annotations = (meta.labels or {}, meta.annotations) if meta else ({}, None)
        spec, errors, left_out = spec_of_configmap(state.slo_controller_config, labels, annotations, last)
        notes = [f"{error}; it is left out" for error in left_out]
        return spec, errors, (*notes, *map(str, unknown_in_config(state.slo_controller_config)))
    return None, (), ()


class Known:
    """The pods and the NodeSLO in force. A part of it that is unusable leaves the last good one in force.

    With `strict` (`compat: strict`) a NodeSLO that was deleted stays in force and percents are of the Node's capacity,
    as in koordlet. Labels of namespaces count for `labels_max_age_ns` after the source was last sure of them; None:
    no caller asks for them.
    """

    def __init__(self, *, strict: bool = False, labels_max_age_ns: int | None = None) -> None:
        self.facts: tuple[PodFacts, ...] = ()
        self.node: Node | None = None
        self.spec: NodeSLOSpec | None = None  # None: neither a NodeSLO nor the ConfigMap is there
        self.host_applications: dict[str, str] = {}
        self.problems_by_reason: dict[str, tuple[str, ...]] = {}
        self.is_whole = False  # pods and Node were reported, once at least
        self.uids: frozenset[str] = frozenset()
        self.pdbs: tuple[PodDisruptionBudget, ...] | None = None
        self.topology: NodeResourceTopology | None = None
        self.namespaces: tuple[Namespace, ...] = ()  # of which the labels are known
        self.is_strict = strict
        self._read: tuple[object, ...] = ()  # what the spec is made of, when it was read last
        self._spec_problems: tuple[str, ...] = ()
        self._capacity_doubt: str | None = None
        self._labels_max_age_ns = labels_max_age_ns
        self._labels_asked_ns: int | None = None
        self._labels_problem: str | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences on everything that is wrong."""
        return tuple(problem for each in self.problems_by_reason.values() for problem in each)

    @property
    def strategy(self) -> ResourceThresholdStrategy | None:
        """resourceUsedThresholdWithBE, None where nothing is known."""
        return self.spec.resourceUsedThresholdWithBE if self.spec else None

    def learn(self, state: ClusterState) -> None:
        """Take over what a source says now. A pod that cannot be read is never evicted, with a sentence."""
        of_pods: list[str] = []
        of_node: list[str] = []
        self.is_whole = self.is_whole or bool(state.synced_at_ns)
        self.pdbs, self.topology = state.pdbs, state.topology
        known = {id(facts.pod): facts for facts in self.facts}
        facts: list[PodFacts] = []
        for pod in state.pods:
            each = known.get(id(pod)) or pod_facts(pod)
            facts.append(each)
            if each.terms.problem is not None:
                of_pods.append(f"{each.terms.problem}; the pod is left alone")
        self.facts = tuple(facts)
        self.uids = frozenset(each.uid for each in facts)
        try:
            self.node = _checked_node(state)
        except ConfigError as error:
            of_node.append(f"{error}; the last good Node stays in force")
        self._learn_spec(state)
        self.problems_by_reason = {
            "source": state.problems,
            "pods": tuple(of_pods),
            "node": tuple(of_node),
            "capacity": (self._capacity_doubt,) if self._capacity_doubt else (),
            "namespaces": (self._labels_problem,) if self._labels_problem else (),
            "NodeSLO": self._spec_problems,
        }

    def capacity_bytes(self, measure: NodeMeasure) -> int:
        """Return what the percents refer to."""
        return node_capacity_bytes(self.node, measure, strict=self.is_strict)

    def look_at_capacity(self, measure: NodeMeasure) -> bool:
        """Compare the Node with what the kernel has now; tell whether that changed what is wrong."""
        doubt = capacity_doubt(self.node, measure, strict=self.is_strict)
        if doubt == self._capacity_doubt:
            return False
        self._capacity_doubt = doubt
        self.problems_by_reason = {**self.problems_by_reason, "capacity": (doubt,) if doubt else ()}
        return True

    def look_at_namespaces(self, state: ClusterState, now_ns: int) -> bool:
        """Forget labels that are too old, or take those that are not; tell whether that changed what is wrong."""
        max_age_ns = self._labels_max_age_ns
        if max_age_ns is None:
            return False
        if self._labels_asked_ns is None:
            self._labels_asked_ns = now_ns
        since_ns = self._labels_asked_ns if state.namespaces is None else state.namespaces_since_ns
        is_late = since_ns is not None and now_ns - since_ns > max_age_ns
        self.namespaces = () if is_late or state.namespaces is None else state.namespaces
        problem = None
        if is_late:
            problem = (
                f"namespaces: their labels have not been known for {format_ns(max_age_ns)}: every exemption counts"
                " where eviction.exemptions selects by label"
            )
        if problem == self._labels_problem:
            return False
        self._labels_problem = problem
        self.problems_by_reason = {**self.problems_by_reason, "namespaces": (problem,) if problem else ()}
        return True

    def _learn_spec(self, state: ClusterState) -> None:
        meta = state.node.metadata if state.node else None
        made_of = (state.nodeslo, state.slo_controller_config, meta and meta.labels, meta and meta.annotations)
        if made_of == self._read:
            return  # most changes are of pods
        self._read = made_of
        try:
            spec, errors, notes = _spec(state, self.spec)
        except ConfigError as error:
            self._spec_problems = (f"{error}; the last good NodeSLO stays in force",)
            return
        in_force = [f"{error}; the last good strategy stays in force" for error in errors]
        self._spec_problems = (*in_force, *notes)
        if spec is None and self.is_strict:
            return
        if spec is not None:
            place = "spec.resourceUsedThresholdWithBE" if state.nodeslo is not None else THRESHOLD_KEY
            self._spec_problems += tuple(strategy_doubts(spec.resourceUsedThresholdWithBE, place))
        self.spec = spec
        self.host_applications = host_directories(spec.hostApplications) if spec else {}
