"""Taint the node (or set a condition) while memory evictions are in progress."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from koordebpf.policy.strategy import GATE_OFF, Decision
from koordebpf.policy.taint import MarkTiming, NodeMarkSettings, is_for_memory, is_memory_short

if TYPE_CHECKING:
    from koordebpf.act.taint import NodeMarker
    from koordebpf.configuration.settings import AgentConfig
    from koordebpf.policy.plan import Plan
    from koordebpf.state.view import PendingRelease


class NodeMarking:
    """The mark of this node as the rounds want it."""

    def __init__(self, settings: NodeMarkSettings, marker: NodeMarker) -> None:
        self._settings = settings
        self._marker = marker
        self._timing = MarkTiming()
        self._asking: set[str] = set()  # strategies that want the node marked

    def observe(
        self,
        plan: Plan,
        pending: Iterable[PendingRelease],
        late: Collection[str],
        began_ns: int,
        strategies: Mapping[str, Decision[Any]] = {},
    ) -> None:
        """Take in a round that began at `began_ns`. Of `late` ones, by UID, nothing is expected any more.

        `strategies`: decisions by name. Of one that was not asked in this round, or could not judge it, the conditions
        that it named last hold.
        """
        for name, made in strategies.items():
            if made.skipped in (None, GATE_OFF):
                (self._asking.add if made.conditions else self._asking.discard)(name)
        awaited = {entry.uid: entry.since_ns for entry in pending if entry.uid not in late}
        evicted = {uid for uid, since_ns in awaited.items() if since_ns > began_ns}
        by_memory = [feature for feature in plan.features if is_for_memory(feature.verdict)]
        self._timing = self._timing.after(
            evicted=any(victim.candidate.uid in evicted for feature in by_memory for victim in feature.victims),
            is_short=is_memory_short(feature.verdict for feature in plan.features),
            awaits=bool(awaited),
            now_ns=began_ns,
            calm_ns=self._settings.calm_ns,
        )
        self._marker.wish(self._timing.is_on or bool(self._asking))


def open_node_marking(config: AgentConfig, stack: ExitStack) -> NodeMarking | None:
    """Return what taints the node; None where that is not configured, or in a dry run."""
    if config.node_mark.type == "nothing" or not config.enforce:
        return None
    from koordebpf.act.taint import NodeMarker
    from koordebpf.kube.clients.taints import NodeMarks
    from koordebpf.kube.http.transport import open_cluster

    marks = NodeMarks(open_cluster(config.kubeconfig, config.kube_context), config.node_name or "")
    marker = NodeMarker(marks, config.node_mark.type)
    stack.callback(marker.close)
    return NodeMarking(config.node_mark, marker)
