"""When the node, and the pods and containers with a limit, will have used up their memory."""

from __future__ import annotations

from collections.abc import Mapping

from koordebpf.collect.cluster_view import Known
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.slo.strategies.threshold_bytes import threshold_bytes
from koordebpf.slo.strategies.threshold_rules import memory_evict_lower_percent
from koordebpf.state.forecast import SOONEST, GrowthHistory, time_to
from koordebpf.state.measured import NodeForecast, NodeMeasure, StallShares, TimeTo
from koordebpf.units import NS_PER_MS

_USED = "used"


class Forecasts:
    """Keeps how memory grew, and forecasts from it."""

    def __init__(self, watch: NodeWatch, collector: MemoryCollector) -> None:
        self._watch = watch
        self._collector = collector
        self._node: GrowthHistory[str] = GrowthHistory(8 * NS_PER_MS)
        self._limited: GrowthHistory[int] = GrowthHistory()
        self.pods: Mapping[str, TimeTo] = {}  # by uid, as of the last look at them

    def note(self, now_ns: int, node: NodeMeasure) -> None:
        """Remember how full the node was at a sample in between, for the forecast."""
        if node.scope == "machine" or node.memory is not None:  # else its page cache is in it
            self._node.push(now_ns, {_USED: node.known_used_bytes})

    def of_node(self, known: Known, node: NodeMeasure) -> NodeForecast:
        """Return when the node will reach its lower mark, its threshold and its end."""
        capacity = known.capacity_bytes(node)
        threshold = threshold_bytes(known.strategy, capacity)
        lower_percent = memory_evict_lower_percent(known.strategy) if known.strategy and threshold else None
        growths = self._node.growths(_USED)
        line = node.psi_some or (node.shares.some if node.shares else None)
        stalled_ratio = line.avg10 / 100 if line else 0.0

        def until(mark: int | None) -> TimeTo | None:
            return None if mark is None else time_to(mark - node.known_used_bytes, growths, stalled_ratio)

        lower = None if lower_percent is None else max(capacity * lower_percent // 100, 0)
        return NodeForecast(until(lower), until(threshold), until(node.total_bytes))

    def look_at_pods(self, now_ns: int, shares: Mapping[str, StallShares]) -> None:
        """Forecast for pods as they were measured last, if that is due; of a pod's cgroups the first one counts."""
        if not self._limited.is_due(now_ns):
            return
        pod_levels = frozenset(self._watch.index.pod_cgroups().values())
        limited = {each.cgroup_id: each for each in self._collector.limited(pod_levels)}
        self._limited.push(now_ns, {cgroup_id: each.used_bytes for cgroup_id, each in limited.items()})
        rooms = {cgroup_id: each.limit_bytes - each.used_bytes for cgroup_id, each in limited.items()}
        forecasts: dict[str, TimeTo] = {}
        for cgroup_id in self._limited.soonest(rooms, SOONEST):
            uid = limited[cgroup_id].uid
            stalled_ratio = shares[uid].some.avg10 / 100 if uid in shares else 0.0
            found = time_to(rooms[cgroup_id], self._limited.growths(cgroup_id), stalled_ratio)
            if found and (uid not in forecasts or found.point_ns < forecasts[uid].point_ns):
                forecasts[uid] = found
        self.pods = forecasts
