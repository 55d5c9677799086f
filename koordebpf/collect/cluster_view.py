"""Cluster state as last reported by the source, decoded once per change; frames of it and of what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from koordebpf.errors import ConfigError
from koordebpf.kube.cache.cnr import CustomNodeResource
from koordebpf.kube.cache.objects import ClusterState, Namespace, Node, NodeResourceTopology, PodDisruptionBudget
from koordebpf.quantity import quantity_bytes, quantity_millicpu
from koordebpf.slo.manager.shapes import THRESHOLD_KEY, unknown_in_config, unknown_in_nodeslo
from koordebpf.slo.nodeslo import strategy_doubts
from koordebpf.slo.pods.resource_status import with_last_good
from koordebpf.slo.spec import LeftOut, NodeSLOSpec, parse_spec, spec_of_configmap
from koordebpf.slo.strategies.host_applications import host_directories
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.build import allocatable_memory, capacity_doubt, node_capacity_bytes
from koordebpf.state.cnr import Cnr, cnr_of
from koordebpf.state.cpu.view import allocatable_cpu
from koordebpf.state.measured import Measured, NodeMeasure
from koordebpf.state.pods.facts import PodFacts, pod_facts
from koordebpf.state.view import ExecutorName, Frame
from koordebpf.units import format_ns

_NOTHING_REPORTED = ClusterState(version=0, synced_at_ns=0)


def frame_of(
    state: ClusterState | None,
    measured: Measured,
    *,
    feature_gates: Mapping[str, bool],
    executor: ExecutorName,
    wall_s: float | None = None,
) -> Frame:
    """Return what a decision at this moment rests on but for earlier evictions, as one value; nothing is copied."""
    known = state or _NOTHING_REPORTED
    return Frame(
        schema="koordebpf.frame/v3",
        measured=measured,
        pods=known.pods,
        node=known.node,
        nodeResourceTopology=known.topology,
        nodeSLO=known.nodeslo if known.nodeslo is not None else msgspec.UNSET,
        sloControllerConfig=known.slo_controller_config,
        featureGates=dict(feature_gates),
        executor=executor,
        time=None if wall_s is None else datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds"),
        podDisruptionBudgets=known.pdbs,
        namespaces=known.namespaces or (),
    )


def in_force(frame: Frame, known: ClusterView) -> Frame:
    """Return the frame with what is effective: the last good one of what cannot be used, no labels that are too old."""
    return replace(
        frame,
        node=known.node,
        podDisruptionBudgets=known.pdbs,
        nodeResourceTopology=known.topology,
        namespaces=known.namespaces,
        strategyInForce=known.strategy,
    )


class NamespaceLabels:
    """Labels count for `max_age_ns` after the source was last sure of them; None: no caller asks for them."""

    def __init__(self, max_age_ns: int | None) -> None:
        self._max_age_ns = max_age_ns
        self._asked_ns: int | None = None
        self.namespaces: tuple[Namespace, ...] = ()  # of which the labels are known
        self.problem: str | None = None

    def refresh(self, state: ClusterState, now_ns: int) -> bool:
        """Forget labels that are too old, or take those that are not; tell whether that changed what is wrong."""
        max_age_ns = self._max_age_ns
        if max_age_ns is None:
            return False
        if self._asked_ns is None:
            self._asked_ns = now_ns
        since_ns = self._asked_ns if state.namespaces is None else state.namespaces_since_ns
        is_late = since_ns is not None and now_ns - since_ns > max_age_ns
        self.namespaces = () if is_late or state.namespaces is None else state.namespaces
        problem = None
        if is_late:
            problem = (
                f"namespaces: their labels have not been known for {format_ns(max_age_ns)}: every exemption counts"
                " where eviction.exemptions selects by label"
            )
        if problem == self.problem:
            return False
        self.problem = problem
        return True


class EffectiveSpec:
    """The last good spec of a node, and what is wrong with the newest one."""

    def __init__(self) -> None:
        self.spec: NodeSLOSpec | None = None  # None: neither a NodeSLO nor the ConfigMap is there
        self.host_applications: dict[str, str] = {}
        self.problems: tuple[str, ...] = ()
        self._read: tuple[object, ...] = ()  # what the spec is made of, when it was read last

    def learn(self, state: ClusterState, *, keeps_deleted: bool) -> None:
        """Take over what a source says now. With `keeps_deleted` a NodeSLO that was deleted stays effective."""
        of_node = (state.node.metadata.labels, state.node.metadata.annotations) if state.node else ()
        made_of = (state.nodeslo, state.slo_controller_config, *of_node)
        if made_of == self._read:
            return  # most changes are of pods
        self._read = made_of
        try:
            spec, errors, notes = parse_cluster_spec(state, self.spec)
        except ConfigError as error:
            self.problems = (f"{error}; the last good NodeSLO stays in force",)
            return
        stays = "; the last good strategy stays in force"
        in_force = [str(error) if isinstance(error, LeftOut) else f"{error}{stays}" for error in errors]
        self.problems = (*in_force, *notes)
        if spec is None and keeps_deleted:
            return
        if spec is not None:
            place = "spec.resourceUsedThresholdWithBE" if state.nodeslo is not None else THRESHOLD_KEY
            self.problems += tuple(strategy_doubts(spec.resourceUsedThresholdWithBE, place))
        self.spec = spec
        self.host_applications = host_directories(spec.hostApplications) if spec else {}


class EffectiveTopology:
    """The NodeResourceTopology of a node, with the last good annotations on share pools, and what is wrong with it."""

    def __init__(self) -> None:
        self.effective: NodeResourceTopology | None = None
        self.problems: tuple[str, ...] = ()
        self._read: NodeResourceTopology | None = None

    def learn(self, reported: NodeResourceTopology | None) -> None:
        """Take over what a source says now; an object that was deleted takes its annotations with it."""
        if reported is self._read:
            return
        self._read, last = reported, self.effective
        self.effective, self.problems = reported, ()
        if reported is None or last is None:
            return
        now = reported.metadata.annotations
        annotations, self.problems = with_last_good(now, last.metadata.annotations)
        if annotations is not now:
            kept = dict(annotations or {})
            self.effective = replace(reported, metadata=replace(reported.metadata, annotations=kept))


def parse_cluster_spec(
    state: ClusterState, last: NodeSLOSpec | None
) -> tuple[NodeSLOSpec | None, tuple[ConfigError, ...], tuple[str, ...]]:
    """Return the spec that a source reports, what is wrong with parts of it, and what is not known of it.

    The NodeSLO takes precedence: koordlet reads it. The ConfigMap is its source for a node without manager.
    """
    if state.nodeslo is not None:
        return *parse_spec(state.nodeslo, last), tuple(map(str, unknown_in_nodeslo(state.nodeslo)))
    if state.slo_controller_config is not None:
        meta = state.node.metadata if state.node else None
        labels, annotations = (meta.labels or {}, meta.annotations) if meta else ({}, None)
        spec, errors, left_out = spec_of_configmap(state.slo_controller_config, labels, annotations, last)
        return spec, errors, (*map(str, left_out), *map(str, unknown_in_config(state.slo_controller_config)))
    return None, (), ()


def check_configuration(state: ClusterState) -> None:
    """Let a first state pass only if its Node and its NodeSLO can be used: there is no last good one yet.

    Raises:  ConfigError: one of them has a value of a wrong type.
    """
    _checked_node(state)
    _, problems, _ = parse_cluster_spec(state, None)
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


class ClusterView:
    """The pods and the effective NodeSLO. Of a part that is unusable the last good one stays effective.

    With `strict` (`compat: strict`) a NodeSLO that was deleted stays effective and percents are of the Node's capacity,
    as in koordlet. Labels of namespaces count for `labels_max_age_ns` after the source was last sure of them; None:
    no caller asks for them.
    """

    def __init__(self, *, strict: bool = False, labels_max_age_ns: int | None = None) -> None:
        self.reported: ClusterState | None = None  # as it was learned; its pods are those of `facts`
        self.facts: tuple[PodFacts, ...] = ()
        self.node: Node | None = None
        self.problems_by_reason: dict[str, tuple[str, ...]] = {}
        self.is_whole = False  # pods and Node were reported, once at least
        self.uids: frozenset[str] = frozenset()
        self.cnr: Cnr | None = None
        self.is_strict = strict
        self._spec = EffectiveSpec()
        self._labels = NamespaceLabels(labels_max_age_ns)
        self._topology = EffectiveTopology()
        self._capacity_doubt: str | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences on everything that is wrong."""
        return tuple(problem for each in self.problems_by_reason.values() for problem in each)

    @property
    def pdbs(self) -> tuple[PodDisruptionBudget, ...] | None:
        """PodDisruptionBudgets as they were learned."""
        return self.reported.pdbs if self.reported else None

    @property
    def topology(self) -> NodeResourceTopology | None:
        """The NodeResourceTopology as it was learned; share pools that cannot be read are the last good ones."""
        return self._topology.effective

    @property
    def spec(self) -> NodeSLOSpec | None:
        """The NodeSLO's spec; None: neither a NodeSLO nor the ConfigMap is there."""
        return self._spec.spec

    @property
    def host_applications(self) -> dict[str, str]:
        """Directory below the node's root → name."""
        return self._spec.host_applications

    @property
    def namespaces(self) -> tuple[Namespace, ...]:
        """Those of which the labels are known."""
        return self._labels.namespaces

    @property
    def strategy(self) -> ResourceThresholdStrategy | None:
        """resourceUsedThresholdWithBE, None where nothing is known."""
        return self.spec.resourceUsedThresholdWithBE if self.spec else None

    def learn(self, state: ClusterState) -> None:
        """Take over what a source says now. A pod of which a quantity cannot be read has a sentence."""
        before, self.reported = self.reported, state
        of_pods: list[str] = []
        of_node: list[str] = []
        self.is_whole = self.is_whole or bool(state.synced_at_ns)
        known = {id(facts.pod): facts for facts in self.facts}
        facts: list[PodFacts] = []
        for pod in state.pods:
            each = known.get(id(pod)) or pod_facts(pod)
            facts.append(each)
            if each.terms.problem is not None:
                of_pods.append(f"{each.terms.problem}; the pod counts as one that requests nothing")
        self.facts = tuple(facts)
        self.uids = frozenset(each.uid for each in facts)
        try:
            self.node = _checked_node(state)
        except ConfigError as error:
            of_node.append(f"{error}; the last good Node stays in force")
        self._spec.learn(state, keeps_deleted=self.is_strict)
        self._topology.learn(state.topology)
        of_cnr = self.problems_by_reason.get("CustomNodeResource", ())
        if state.cnr is not (before.cnr if before else None):
            self.cnr, of_cnr = _read_cnr(state.cnr)
        self.problems_by_reason = {
            "source": state.problems,
            "pods": tuple(of_pods),
            "node": tuple(of_node),
            "capacity": (self._capacity_doubt,) if self._capacity_doubt else (),
            "namespaces": (self._labels.problem,) if self._labels.problem else (),
            "NodeSLO": self._spec.problems,
            "CustomNodeResource": of_cnr,
            "NodeResourceTopology": self._topology.problems,
        }

    def capacity_bytes(self, measure: NodeMeasure) -> int:
        """Return what the percents refer to."""
        return node_capacity_bytes(self.node, measure, strict=self.is_strict)

    def check_capacity(self, measure: NodeMeasure) -> bool:
        """Compare the Node with what the kernel has now; tell whether that changed what is wrong."""
        doubt = capacity_doubt(self.node, measure, strict=self.is_strict)
        if doubt == self._capacity_doubt:
            return False
        self._capacity_doubt = doubt
        self.problems_by_reason = {**self.problems_by_reason, "capacity": (doubt,) if doubt else ()}
        return True

    def refresh_namespaces(self, state: ClusterState, now_ns: int) -> bool:
        """Forget labels that are too old, or take those that are not; tell whether that changed what is wrong."""
        if not self._labels.refresh(state, now_ns):
            return False
        problem = self._labels.problem
        self.problems_by_reason = {**self.problems_by_reason, "namespaces": (problem,) if problem else ()}
        return True


# No last good one stays effective: a threshold of it evicts pods.
def _read_cnr(written: CustomNodeResource | None) -> tuple[Cnr | None, tuple[str, ...]]:
    try:
        return (None if written is None else cnr_of(written)), ()
    except ConfigError as error:
        return None, (f"{error}; no plugin of Katalyst's judges the CustomNodeResource",)


def is_same(inputs: tuple[int, object], before: tuple[int, object] | None) -> bool:
    """Tell whether nothing has changed: the same version, and the very same report of the cluster."""
    return before is not None and inputs[0] == before[0] and inputs[1] is before[1]
