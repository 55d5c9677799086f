"""Everything that is decided for one moment of a node: victims, and the CPUs that best-effort pods keep."""

from __future__ import annotations

from typing import Any

import msgspec

from koordebpf.policy.decide import decide
from koordebpf.policy.detect.stall_evict import stall_evict
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import Plan
from koordebpf.policy.suppress.explained import ExplainedSuppression, explained_suppression
from koordebpf.policy.suppress.settings import SuppressSettings
from koordebpf.state.pods.exemptions import judged
from koordebpf.state.suppression import SuppressState
from koordebpf.state.view import NodeView


class NodePlan(Plan, frozen=True, kw_only=True):
    """The plan with suppression and the stall net beside the evictions: what `koordebpf plan` prints."""

    suppression: ExplainedSuppression
    stall_net: Verdict  # StallEvict, judged whether its gate is on or not


def decide_node(view: NodeView, eviction: EvictSettings, suppress: SuppressSettings) -> NodePlan:
    """Return all decisions for this view; evictions and suppression do not know of each other, as in the agent."""
    view = judged(view, eviction.exemptions)
    plan = decide(view, eviction)
    suppression = explained_suppression(view, suppress, view.suppression or SuppressState())
    stalls = stall_evict(view, eviction.stall.full_percent, eviction.stall.seconds, strict=eviction.strict_compat)
    return NodePlan(**msgspec.structs.asdict(plan), suppression=suppression, stall_net=stalls)


def node_plan_schema() -> dict[str, Any]:
    """Return the JSON Schema of a plan."""
    return msgspec.json.schema(NodePlan)
