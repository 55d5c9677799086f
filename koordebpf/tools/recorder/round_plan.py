"""The plan of one recorded round as `koordebpf replay --at --json` prints it."""

from __future__ import annotations

import msgspec

from koordebpf.report.pages.plan_diff import plan_diff
from koordebpf.report.pages.plan_diff_json import PlanDiff, plan_diff_json
from koordebpf.store.recorder.rounds import ReadRound
from koordebpf.store.v1 import types as v1
from koordebpf.store.v1.encode import node_plan_json
from koordebpf.tools.plan import case_changes, case_of_tick
from koordebpf.tools.recorder.replay import Change
from koordebpf.tools.recorder.rounds import time_text


class ReplayedPlan(msgspec.Struct, frozen=True):
    """The plan of the round of a time; `diff`: what other settings change, if any were asked for."""

    time: str
    plan: v1.NodePlan  # as it was
    diff: PlanDiff | None = None


def replayed_plan(each: ReadRound, change: Change | None) -> ReplayedPlan:
    """Return the plan of one round; under other settings, also what they change.

    Raises:  ConfigError: a NodeSLO, ConfigMap or quantity is unusable.
    """
    case = case_of_tick(each.tick, "recording")
    decided, diff = case.plan(), None
    if change is not None:
        other = change(case)
        diff = plan_diff_json(plan_diff(decided, other.plan(), case_changes(case, other)))
    return ReplayedPlan(time_text(each.wall_ns), node_plan_json(decided), diff)
