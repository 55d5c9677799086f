"""resctrl as a strategy, with koordlet's feature gate."""

from __future__ import annotations

from koordebpf.policy.plan import PodAction
from koordebpf.policy.resctrl.rules import Members, pods_of_groups, resctrl_wanted
from koordebpf.policy.resctrl.settings import ResctrlSettings
from koordebpf.policy.strategy import Decision, Empty, Strategy
from koordebpf.state.resctrl.measured import ResctrlMeasured
from koordebpf.state.view import NodeView


class ResctrlDecision(Decision[Empty], frozen=True, kw_only=True):
    """The decision with the groups that are to be there and whose tasks are in them."""

    groups: tuple[str, ...] = ()
    members: tuple[Members, ...] = ()
    problems: tuple[str, ...] = ()

    def pod_actions(self, view: NodeView) -> tuple[PodAction, ...]:
        """Return whose tasks are moved to which group, also to one that is to be made first.

        Where tasks were counted, pods without one to move are left out.
        """
        measured = RDT_RESCTRL.measured_of(view)
        if measured is None:
            return ()
        found = []
        for group, pod in pods_of_groups(measured, view.pods, self.groups):
            counted = measured.tasks.get(pod.uid)
            tasks = None if counted is None else counted.total - counted.in_groups.get(group, 0)
            if tasks != 0:
                found.append(PodAction(pod.uid, pod.namespace, pod.name, resctrl_group=group, tasks=tasks))
        return tuple(found)


class RdtResctrl(Strategy[ResctrlMeasured, Empty, ResctrlSettings]):
    """Wants a group for each class whose resctrlQOS is enabled."""

    name = "rdtResctrl"
    gate = "RdtResctrl"
    summary = "give each QoS class its shares of L3 cache and memory bandwidth"
    measured = ResctrlMeasured
    settings = ResctrlSettings
    state = Empty

    def decide(
        self, view: NodeView, measured: ResctrlMeasured | None, state: Empty, settings: ResctrlSettings
    ) -> ResctrlDecision:
        """Return the groups, their schemata and their members.

        Skips:   not_known: the cluster has not been heard of, or resctrl was not read; all stays as it is.
        """
        if measured is None:
            return ResctrlDecision(state=state, reason="resctrl is not due", skipped="not_known")
        if view.measured.node.scope != "machine":
            return ResctrlDecision(state=state, reason="resctrl: the node is a cgroup of a larger machine")
        wanted = resctrl_wanted(measured, view.pods, settings)
        return ResctrlDecision(
            state=state,
            reason=f"resctrl: {len(wanted.groups)} classes with shares of their own",
            sysctls=wanted.schemata,
            groups=wanted.groups,
            members=wanted.members,
            problems=wanted.problems,
        )


RDT_RESCTRL = RdtResctrl()
