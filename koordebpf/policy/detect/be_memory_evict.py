"""BEMemoryEvict: is the node's memory above the threshold at which best-effort pods are evicted."""

from __future__ import annotations

from koordebpf.policy.detect.used_memory import used_memory
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.slo.strategies.resource_threshold import memory_evict_problem
from koordebpf.state.view import NodeView

FEATURE = "BEMemoryEvict"


def be_memory_evict(view: NodeView, ahead_ns: int = 0, *, by_percent: bool = False) -> Verdict:
    """Judge the node's memory: `used_memory`."""
    return used_memory(view, FEATURE, memory_evict_problem, ahead_ns, by_percent=by_percent)
