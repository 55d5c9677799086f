"""The first sentence of a plan for people: what is done, be it an eviction or not; and field names in plain words."""

from __future__ import annotations

import re

from koordebpf.decision.node_plan import NodePlan
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.units import format_millicpu

_NOTHING = "no action: "
_NOT_CONFIG = re.compile(r"(\w+(?: or \w+)*) not config\b")
_FIELDS = {name.lower(): name for name in ResourceThresholdStrategy.__struct_fields__}


def headline(plan: NodePlan) -> str:
    """Return the plan's sentence; where nothing is evicted, what else would be done stands before it."""
    done = [*_suppressed(plan), *_written(plan), *_acted_on(plan)]
    if not done or any(feature.victims for feature in plan.features) or not plan.sentence.startswith(_NOTHING):
        return plain_words(plan.sentence)
    return f"{'; '.join(done)}; no eviction: {plain_words(plan.sentence.removeprefix(_NOTHING))}"


def plain_words(text: str) -> str:
    """Return a reason with Koordinator's words for a field that is missing replaced by what is to be set.

    >>> plain_words("resourceUsedThresholdWithBE is unusable: EvictEnabledPriorityThreshold not config")
    'resourceUsedThresholdWithBE is unusable: set evictEnabledPriorityThreshold'
    """
    return _NOT_CONFIG.sub(lambda found: f"set {' or '.join(map(_field, found[1].split(' or ')))}", text)


def _field(name: str) -> str:
    if name.lower() == "resourcethresholdstrategy":
        return "resourceUsedThresholdWithBE"
    return _FIELDS.get(name.lower(), name)


def _suppressed(plan: NodePlan) -> list[str]:
    decision, differences = plan.suppression.decision, plan.suppression.differences
    if decision.skipped or not differences:
        return []
    if decision.held_millicpu is None:
        return ["lifts what best-effort pods were limited to"]
    return [f"limits best-effort pods to {format_millicpu(decision.held_millicpu)}"]


def _written(plan: NodePlan) -> list[str]:
    counts = {name: len(each.writes) + len(each.sysctls) for name, each in plan.strategies.items()}
    return [f"{name} writes {count} file{'s' if count > 1 else ''}" for name, count in counts.items() if count]


def _acted_on(plan: NodePlan) -> list[str]:
    said = []
    for name, each in plan.strategies.items():
        if count := len(each.pods) + each.more_pods:
            verb = "takes memory" if each.pods[0].reclaim_bytes is not None else "moves tasks"
            said.append(f"{name} {verb} of {count} pod{'s' if count > 1 else ''}")
    return said
