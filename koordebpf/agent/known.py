"""What the source told, worked out once for each change: pod facts, the merged strategy, sentences on what is wrong."""

from __future__ import annotations

from koordebpf.errors import ConfigError
from koordebpf.kube.objects import ClusterState, Node
from koordebpf.kube.quantity import quantity_bytes
from koordebpf.slo.host_applications import host_applications_of
from koordebpf.slo.nodeslo import strategy_for
from koordebpf.slo.strategy import ResourceThresholdStrategy
from koordebpf.state.facts import PodFacts, pod_facts


def check_configuration(state: ClusterState) -> None:
    """Let a first state pass only if its Node and its strategy can be used: there is no last good one yet.

    Raises:  ConfigError: one of them has a value of a wrong type.
    """
    _checked_node(state)
    _strategy(state)


def _checked_node(state: ClusterState) -> Node | None:
    capacity = state.node.status.capacity if state.node else None
    if capacity and "memory" in capacity:
        quantity_bytes(capacity["memory"], "node.status.capacity.memory")
    return state.node


def _strategy(state: ClusterState) -> ResourceThresholdStrategy | None:
    labels = state.node.metadata.labels if state.node else None
    return strategy_for(state.nodeslo, state.slo_controller_config, labels)


class Known:
    """The pods and the strategy in force. A NodeSLO that is unusable leaves the last good strategy in force."""

    def __init__(self) -> None:
        self.facts: tuple[PodFacts, ...] = ()
        self.node: Node | None = None
        self.strategy: ResourceThresholdStrategy | None = None
        self.host_applications: dict[str, str] = {}
        self.problems: tuple[str, ...] = ()
        self.uids: frozenset[str] = frozenset()

    def learn(self, state: ClusterState) -> None:
        """Take over what a source says now. A pod that cannot be understood is left out, with a sentence."""
        problems = list(state.problems)
        known = {id(facts.pod): facts for facts in self.facts}
        facts: list[PodFacts] = []
        for pod in state.pods:
            try:
                facts.append(known.get(id(pod)) or pod_facts(pod))
            except ConfigError as error:
                problems.append(f"{error}; the pod is left alone")
        self.facts = tuple(facts)
        self.uids = frozenset(each.uid for each in facts)
        try:
            self.node = _checked_node(state)
        except ConfigError as error:
            problems.append(f"{error}; the last good Node stays in force")
        try:
            self.strategy = _strategy(state)
        except ConfigError as error:
            problems.append(f"{error}; the last good strategy stays in force")
        try:
            self.host_applications = host_applications_of(state.nodeslo) if state.nodeslo is not None else {}
        except ConfigError as error:
            problems.append(f"{error}; the last good host applications stay in force")
        self.problems = tuple(problems)
