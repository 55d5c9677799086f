"""What the source told, worked out once for each change: pod facts, the merged strategy, sentences on what is wrong."""

from __future__ import annotations

from koordebpf.errors import ConfigError
from koordebpf.kube.objects import ClusterState, Node
from koordebpf.slo.nodeslo import strategy_for
from koordebpf.slo.strategy import ResourceThresholdStrategy
from koordebpf.state.facts import PodFacts, pod_facts


class Known:
    """The pods and the strategy in force. A NodeSLO that is unusable leaves the last good strategy in force."""

    def __init__(self) -> None:
        self.facts: tuple[PodFacts, ...] = ()
        self.node: Node | None = None
        self.strategy: ResourceThresholdStrategy | None = None
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
        self.node = state.node
        try:
            labels = state.node.metadata.labels if state.node else None
            self.strategy = strategy_for(state.nodeslo, state.slo_controller_config, labels)
        except ConfigError as error:
            problems.append(f"{error}; the last good strategy stays in force")
        self.problems = tuple(problems)
