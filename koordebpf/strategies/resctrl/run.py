"""resctrl in a running agent: measures for it, makes and removes groups, and moves tasks.

Schemata are written as files of any other strategy are, by `OwnStrategies`: in the round after a group was made.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from koordebpf.collect.cluster_view import Known
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.policy.strategy import GATE_OFF, Decision
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import StrategyRunner
from koordebpf.state.view import NodeView
from koordebpf.strategies.resctrl.decide import RDT_RESCTRL, ResctrlDecision
from koordebpf.strategies.resctrl.groups import ResctrlGroups, recorded_groups
from koordebpf.strategies.resctrl.measure import RESCTRL, ResctrlCollector
from koordebpf.strategies.resctrl.values import GROUPS, ResctrlMeasured


class RdtResctrlRunner(StrategyRunner[ResctrlMeasured, ResctrlDecision]):
    """Makes, fills and removes groups.

    Args:
        known: of the cluster.
        collector: of what resctrl has.
        groups: that this agent makes.
        others: names of those that another agent of this node has made: a frame is made beside it.
    """

    def __init__(
        self, known: Known, collector: ResctrlCollector, groups: ResctrlGroups, others: Collection[str] = ()
    ) -> None:
        super().__init__("resctrl", RDT_RESCTRL, ResctrlDecision, self._measured)
        self._known = known
        self._collector = collector
        self._groups = groups
        self._others = others

    def _measured(self, _now_ns: int) -> ResctrlMeasured | None:
        if not self._known.is_whole:
            return None
        return self._collector.measure(self._known.spec, {*self._groups.made, *self._others})

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Make, fill and remove groups; all are removed where the gate is off."""
        super().carry_out(decisions, view)
        made = decisions.get(RDT_RESCTRL.name)
        if made is not None and made.skipped == GATE_OFF:
            self._groups.restore(view.now_ns)

    def take(self, made: ResctrlDecision, view: NodeView) -> Iterable[str]:
        """Make, fill and remove groups."""
        self._groups.apply(made.groups, made.members, view.now_ns)
        return made.problems

    def close(self) -> None:
        """Remove the groups."""
        self._groups.restore(time.monotonic_ns())


def open_runner(node: NodeContext) -> RdtResctrlRunner | None:
    """Return it; None: its gate is off. Groups that an agent left which was killed are removed then."""
    record = node.folder / GROUPS if node.folder else None
    is_on = bool(node.config.feature_gates.get(RDT_RESCTRL.gate))
    mounts, watch = find_controllers(), node.measuring.watch
    hierarchy = mounts["cpu"].mount_point if "cpu" in mounts else watch.scope.hierarchy.mount_point
    groups = ResctrlGroups(RESCTRL, hierarchy, record, node.report)
    if not is_on:
        groups.restore(time.monotonic_ns())
        return None
    collector = ResctrlCollector(RESCTRL, watch.index, counted_in=hierarchy if node.is_one_frame else None)
    others = recorded_groups(node.other_folder / GROUPS) if node.other_folder is not None else ()
    runner = RdtResctrlRunner(node.measuring.known, collector, groups, others)
    node.stack.callback(runner.close)
    return runner
