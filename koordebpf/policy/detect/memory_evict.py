"""MemoryEvict: is the node's memory above the line at which pods are evicted by priority."""

from __future__ import annotations

from koordebpf.policy.detect.used_memory import used_memory
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.slo.strategies.resource_threshold import evict_by_priority_problem
from koordebpf.state.view import NodeView

FEATURE = "MemoryEvict"


def memory_evict(view: NodeView, ahead_ns: int = 0, *, by_percent: bool = False) -> Verdict:
    """Judge the node's memory: `used_memory`; evictEnabledPriorityThreshold must be set too."""
    return used_memory(view, FEATURE, evict_by_priority_problem, ahead_ns, by_percent=by_percent)
