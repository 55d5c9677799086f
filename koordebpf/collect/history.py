"""What is remembered of the node from one full measurement to the next, and what each one gains by it.

Stalls of the last seconds, the ledger of who caused them, stall shares where there are no pressure files, and the
forecasts. Everything is worked out in `state`; this reads what they need, in the order they need it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import NodeScope
from koordebpf.errors import KernelProblem
from koordebpf.events.layout import decode_stall
from koordebpf.events.records import CgroupStall
from koordebpf.kernel.bpf.programs import EVERY_STALL
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory
from koordebpf.slo.pods.qos import is_latency_sensitive
from koordebpf.slo.strategies.resource_threshold import memory_evict_lower_percent, threshold_bytes
from koordebpf.state.build import namespace_labels
from koordebpf.state.forecast import SOONEST, GrowthHistory, time_to
from koordebpf.state.measured import (
    Measured,
    NodeForecast,
    NodeMeasure,
    Party,
    StallParts,
    StallSample,
    StallShares,
    TimeTo,
)
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.pods.namespaces import ExemptionSettings, judged_pods
from koordebpf.state.stalls.ledger import Charge, Ledger, Usage
from koordebpf.state.stalls.shares import DecayingShare, ShareTable, lasting_ns
from koordebpf.state.stalls.windows import NODE, StalledPod, StallGrowth, StallSums, StallWindow, extended, stall_sample
from koordebpf.units import NS_PER_MS, NS_PER_S

_USED = "used"
_HIGH_COUNTS_NS = 10 * NS_PER_S  # Why: for as long as a stall stays in the sums it is taken out of
_CONTAINER_ID_SHOWN = 12


class Forecasts:
    """Keeps how memory grew, and forecasts from it."""

    def __init__(self, watch: NodeWatch, collector: MemoryCollector) -> None:
        self._watch = watch
        self._collector = collector
        self._node: GrowthHistory[str] = GrowthHistory(8 * NS_PER_MS)
        self._limited: GrowthHistory[int] = GrowthHistory()
        self.pods: Mapping[str, TimeTo] = {}  # by uid, as of the last look at them

    def record(self, now_ns: int, node: NodeMeasure) -> None:
        """Remember how full the node was at a sample in between, for the forecast."""
        if node.scope == "machine" or node.memory is not None:  # else its page cache is in it
            self._node.push(now_ns, {_USED: node.known_used_bytes})

    def of_node(self, known: ClusterView, node: NodeMeasure) -> NodeForecast:
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

    def forecast_pods(self, now_ns: int, shares: Mapping[str, StallShares]) -> None:
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


class StallReader:
    """Reads the backend's stall sums. Shares are worked out of them where there are no pressure files."""

    def __init__(self, watch: NodeWatch, collector: MemoryCollector) -> None:
        self._watch = watch
        self._collector = collector
        self._sums = StallSums()
        self._window = StallWindow()
        self._shares = ShareTable()
        self._node_share: DecayingShare | None = None
        self._seen: tuple[int, ...] = ()
        self._decoded: dict[bytes, tuple[bytes, CgroupStall]] = {}
        self.by_pod: dict[str, StallGrowth] = {}  # of the last reading, and the node's as `NODE`

    def window(self) -> dict[str, StallParts]:
        """Return what each pod stalled in the last seconds, by uid, and the node under `NODE`."""
        return self._window.rows()

    def read(self, now_ns: int) -> dict[int, StallGrowth]:
        """Return what each cgroup stalled since the last call, by cgroup id.

        The map is read only when the totals say that something changed.
        """
        stalled: dict[int, StallGrowth] = {}
        self.by_pod = {}
        totals = self._watch.totals()
        seen: tuple[int, ...] = ()
        if totals:
            seen = (totals.episodes, totals.compactions, totals.memstalls, totals.node_changed_ts_ns)
            seen += totals.lost_ends, totals.missed_runs  # which may have left a row open
        if seen != self._seen:
            self._seen = seen
            rows = self._rows()
            stalled = self._sums.push(rows)
            self.by_pod = self._window.add(now_ns, stalled, self._watch.index.subtree_pod)
            if not self._collector.pressure.are_there:
                self._shares.push(now_ns, rows, self._collector.task_counts(self._shares.stalled_since(rows)))
        else:
            self._window.forget_older(now_ns)
        if totals and not self._collector.pressure.are_there:
            total_ns = lasting_ns(totals.node_some_ns, totals.node_changed_ts_ns, totals.node_stalled, now_ns)
            if self._node_share is None or total_ns < self._node_share.total_ns:
                self._node_share = DecayingShare(now_ns)
            self._node_share.push(now_ns, total_ns)
        return stalled

    def shares_of(self, cgroup_id: int, now_ns: int) -> StallShares | None:
        """Return the stall shares of one cgroup, a container's say: as its pressure file has them, else derived.

        None: it is gone, or nothing is known of it.
        """
        if self._collector.pressure.are_there:
            return self._collector.pressure.of(cgroup_id)
        return self._shares.shares(cgroup_id, now_ns)

    def shares_of_pod(self, uid: str, now_ns: int) -> StallShares | None:
        """Return the stall shares of a pod; None: it is gone, or nothing is known of it."""
        index = self._watch.index
        cgroup_id = index.pod_cgroup(uid)
        if cgroup_id is None:
            return None
        if self._collector.pressure.are_there:
            return self._collector.pressure.of(cgroup_id)
        children = [each for each in self._shares if each != cgroup_id and index.subtree_pod(each) == uid]
        return self._shares.shares_of_parent(cgroup_id, children, now_ns)

    def full_of_container(self, uid: str, now_ns: int) -> float | None:
        """Return the largest `full` share of a pod's containers with one task each; None: it has none.

        When the only task waits, no task of its container runs.
        """
        index = self._watch.index
        found = [self._shares.shares(each, now_ns) for each in self._shares if index.subtree_pod(each) == uid]
        return max((each.full.avg10 for each in found if each is not None and each.full is not None), default=None)

    def shares_of_node(self, now_ns: int, node: NodeMeasure) -> StallShares | None:
        """Return those of the node where it has no pressure file; None: it has one, or nothing is known."""
        if node.psi_some is not None or self._node_share is None:
            return None
        return StallShares(self._node_share.line(now_ns), None, derived=True)

    # Most of those that ever stalled did not again: what reads the same is not decoded again.
    def _rows(self) -> list[CgroupStall]:
        before, self._decoded = self._decoded, {}
        for key, value in self._watch.signals.stalls():
            known = before.get(key)
            row = known[1] if known and known[0] == value else decode_stall(key, value, histograms=False)
            self._decoded[key] = (value, row)
        return [row for _, row in self._decoded.values()]


class FullStalls:
    """Keeps the window of samples.

    Args:
        watch: whose programs time the stalls. What only sums them up does not say whose limit was hit.
        full_of: the share in which one container waits as a whole, of those that the kernel says it of; 0 to 100.
    """

    def __init__(self, watch: NodeWatch, full_of: Callable[[str, int], float | None]) -> None:
        self._watch = watch
        self._full_of = full_of
        self._window: tuple[StallSample, ...] = ()
        self._high: dict[str, tuple[int, int | None]] = {}  # uid → hits of memory.high, when they rose last

    def sample(
        self,
        now_ns: int,
        facts: Collection[PodFacts],
        stalls: Mapping[str, StallParts],
        shares: Mapping[str, StallShares],
    ) -> tuple[StallSample, ...]:
        """Take what stalled in the last seconds, by uid; return the window. Empty: nothing times the stalls of pods."""
        if self._watch.quality.stalls != "timed":
            self._window = ()
            return ()
        pods = [
            self._stalled(now_ns, each, stalls[each.uid], found)
            for each in facts
            if each.uid in stalls
            and (found := shares.get(each.uid)) is not None
            and not each.is_terminating
            and is_latency_sensitive(each.koord_qos, each.kube_qos)
        ]
        self._high = {uid: seen for uid, seen in self._high.items() if uid in stalls}
        self._window = extended(self._window, stall_sample(now_ns, pods, is_whole=self._is_whole()))
        return self._window

    def restart(self) -> None:
        """Restart the window: something was done about the stalls, and it takes time to see what that brought."""
        self._window = ()

    def _is_whole(self) -> bool:
        lost = {source.signal for source in self._watch.lost}
        return any(each.signal == EVERY_STALL and each.works for each in self._watch.signals.sources) and (
            EVERY_STALL not in lost
        )

    def _stalled(self, now_ns: int, pod: PodFacts, stall: StallParts, shares: StallShares) -> StalledPod:
        some, full = shares.some_at_most or shares.some, shares.full.avg10 if shares.full else None
        if full is None:
            full = self._full_of(pod.uid, now_ns)
        return StalledPod(
            f"{pod.namespace}/{pod.name}",
            stall,
            some.avg10 / 100,
            None if full is None else full / 100,
            shares.derived,
            self._meets_high(now_ns, pod.uid),
        )

    # Children's events are in those of the pod. cgroup v1 has no memory.high.
    def _meets_high(self, now_ns: int, uid: str) -> bool:
        scope: NodeScope = self._watch.scope
        cgroup_id = self._watch.index.pod_cgroup(uid)
        path = None if cgroup_id is None else self._watch.index.path(cgroup_id)
        if path is None or scope.hierarchy.version == 1:
            return False
        try:
            with CgroupMemory(scope.hierarchy.mount_point / path, 2) as files:
                high, *_ = files.events()
        except KernelProblem:
            return True  # nothing is known of it
        before, rose_ns = self._high.get(uid, (high, None))
        if high != before:
            rose_ns = now_ns
        self._high[uid] = high, rose_ns
        return rose_ns is not None and now_ns - rose_ns <= _HIGH_COUNTS_NS


class StallNews(msgspec.Struct, frozen=True):
    """What came with the last measurement."""

    by_pod: Mapping[str, StallGrowth] = {}  # and the node as `NODE`
    charges: tuple[Charge, ...] = ()


class NodeHistory:
    """Measures the node with what was before in mind."""

    period_ns = NS_PER_S  # of all pods, for growth, metrics and `top`

    def __init__(
        self,
        watch: NodeWatch,
        collector: MemoryCollector,
        exemptions: ExemptionSettings = ExemptionSettings(),  # noqa: B008 - frozen
    ) -> None:
        self._watch = watch
        self._exemptions = exemptions
        self._collector = collector
        self._stalls = StallReader(watch, collector)
        self._ledger = Ledger()
        self._full_stalls = FullStalls(watch, self._stalls.full_of_container)
        self._forecasts = Forecasts(watch, collector)
        self.news = StallNews()

    def record(self, now_ns: int, node: NodeMeasure) -> None:
        """Remember how full the node was at a sample in between, for the forecast."""
        self._forecasts.record(now_ns, node)

    def measure(
        self, now_ns: int, known: ClusterView, shmem_uids: Collection[str] = (), sampled: NodeMeasure | None = None
    ) -> Measured:
        """Return the node and all its pods as they are now, with stalls, shares, the ledger and forecasts.

        `sampled` is what the collector said of the node a moment ago, if it was asked: then there is a hurry, and what
        only shows something, or only prepares the next measurement, is left for that one.

        Raises:  CgroupGone: the node's cgroup was removed.
        Cost:    0.1 ms more than the collector while nothing stalls (tests/bench/tick.py).
        """
        stalled = self._stalls.read(now_ns)
        self.news = StallNews(self._stalls.by_pod)
        stalls = self._stalls.window()
        measured = self._collector.everything(stalls, shmem_uids, stalls.get(NODE), sampled)
        now_ns = measured.now_ns
        self.record(now_ns, measured.node)
        if stalled or (sampled is None and self._ledger.is_due(now_ns)):
            self._charge(now_ns, known, measured, stalled)
        shares = {uid: found for uid in stalls if uid != NODE and (found := self._stalls.shares_of_pod(uid, now_ns))}
        if sampled is None:
            self._forecasts.forecast_pods(now_ns, shares)
        forecasts = self._forecasts.pods
        pods = measured.pods
        if shares or forecasts:
            pods = tuple(
                msgspec.structs.replace(pod, shares=shares.get(pod.uid), forecast=forecasts.get(pod.uid))
                if pod.uid in shares or pod.uid in forecasts
                else pod
                for pod in pods
            )
        facts = [each for each in known.facts if each.uid in stalls]
        facts = judged_pods(facts, self._exemptions, namespace_labels(known.namespaces))
        window = self._full_stalls.sample(now_ns, facts, stalls, shares)
        node = msgspec.structs.replace(measured.node, shares=self._stalls.shares_of_node(now_ns, measured.node))
        node = msgspec.structs.replace(node, forecast=self._forecasts.of_node(known, node))
        ledger = self._ledger.view(now_ns)
        return msgspec.structs.replace(measured, node=node, pods=pods, ledger=ledger, stall_window=window)

    def restart_stall_window(self) -> None:
        """Restart the window of the stall net, after something was done about the stalls."""
        self._full_stalls.restart()

    def shares_of(self, cgroup_id: int, now_ns: int) -> StallShares | None:
        """Return the stall shares of one cgroup, a container's say, as `StallReader.shares_of`."""
        return self._stalls.shares_of(cgroup_id, now_ns)

    def shares_of_pod(self, uid: str, now_ns: int) -> StallShares | None:
        """Return the stall shares of a pod, as `StallReader.shares_of_pod`."""
        return self._stalls.shares_of_pod(uid, now_ns)

    def _charge(self, now_ns: int, known: ClusterView, measured: Measured, stalled: Mapping[int, StallGrowth]) -> None:
        index, facts = self._watch.index, {each.uid: each for each in known.facts}
        usages: list[Usage] = []
        for pod in measured.pods:
            if pod.memory and (its := facts.get(pod.uid)):
                party = Party(its.uid, "pod", f"{its.namespace}/{its.name}", uid=its.uid)
                held = pod.memory.usage_bytes + self._collector.swap_bytes(pod.cgroup_id)
                usages.append(Usage(party, held, its.terms.memory_request_bytes))
        for stray in measured.strays:
            if stray.memory and stray.uid:
                held = stray.memory.usage_bytes + self._collector.swap_bytes(stray.cgroup_id)
                usages.append(Usage(Party(stray.uid, "pod", stray.uid, uid=stray.uid), held))
        for cgroup_id, held in self._collector.outside().items():
            owner = index.owner(cgroup_id)
            if owner is not None and owner.kind is not OwnerKind.ROOT:
                usages.append(Usage(_party(cgroup_id, owner), held))
        victims: dict[Party, StallGrowth] = {}
        for cgroup_id, growth in stalled.items():
            victims.setdefault(_party(cgroup_id, index.owner(cgroup_id)), StallGrowth()).add(growth)
        charges = tuple(self._ledger.push(now_ns, victims, usages))
        self.news = msgspec.structs.replace(self.news, charges=charges)


def _party(cgroup_id: int, owner: Owner | None) -> Party:
    if owner is None:
        return Party(f"cgroup {cgroup_id}", "cgroup", f"cgroup {cgroup_id}")
    if owner.pod_uid is None:
        path = owner.path or "/"
        return Party(path, "cgroup", path)
    uid = owner.pod_uid
    name = f"{owner.namespace}/{owner.pod_name}" if owner.pod_known else uid
    if owner.container_id is None:
        return Party(uid, "pod", name, uid=uid)
    container = owner.container_name or owner.container_id[:_CONTAINER_ID_SHOWN]
    return Party(f"{uid}/{owner.container_id}", "pod", name, container, uid)
