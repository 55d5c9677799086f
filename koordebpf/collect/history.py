"""What is remembered of the node from one full measurement to the next, and what each one gains by it.

Stalls of the last seconds, the ledger of who caused them, stall shares where there are no pressure files, and the
forecasts. Everything is worked out in `state`; this reads what they need, in the order they need it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.collect.cluster_view import Known
from koordebpf.collect.full_stalls import FullStalls
from koordebpf.collect.memory import Collector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.events.layout import decode_stall
from koordebpf.events.records import CgroupStall
from koordebpf.slo.strategies.threshold_bytes import threshold_bytes
from koordebpf.slo.strategies.threshold_rules import memory_evict_lower_percent
from koordebpf.state.build import namespace_labels
from koordebpf.state.forecast import SOONEST, GrowthHistory, time_to
from koordebpf.state.pods.exemptions import ExemptionSettings, judged_pods
from koordebpf.state.stalls.ledger import Charge, Ledger, Usage
from koordebpf.state.stalls.shares import DecayingShare, ShareTable, lasting_ns
from koordebpf.state.stalls.sums import LimitedCgroup
from koordebpf.state.stalls.windows import NODE, StallGrowth, StallSums, StallWindow
from koordebpf.state.view import Measured, NodeForecast, NodeMeasure, Party, StallShares, TimeTo
from koordebpf.units import NS_PER_MS

_CONTAINER_ID_SHOWN = 12
_USED = "used"


class StallNews(msgspec.Struct, frozen=True):
    """What came with the last measurement."""

    by_pod: Mapping[str, StallGrowth] = {}  # and the node as `NODE`
    charges: tuple[Charge, ...] = ()


class NodeHistory:
    """Measures the node with what was before in mind."""

    def __init__(
        self,
        watch: NodeWatch,
        collector: Collector,
        exemptions: ExemptionSettings = ExemptionSettings(),  # noqa: B008 - frozen
    ) -> None:
        self._watch = watch
        self._exemptions = exemptions
        self._collector = collector
        self._sums = StallSums()
        self._window = StallWindow()
        self._ledger = Ledger()
        self._shares = ShareTable()
        self._full_stalls = FullStalls(watch, self._full_of_container)
        self._node_share: DecayingShare | None = None
        self._node: GrowthHistory[str] = GrowthHistory(8 * NS_PER_MS)
        self._limited: GrowthHistory[int] = GrowthHistory()
        self._pod_forecasts: Mapping[str, TimeTo] = {}
        self._seen: tuple[int, ...] = ()
        self._decoded: dict[bytes, tuple[bytes, CgroupStall]] = {}
        self.news = StallNews()

    def note(self, now_ns: int, node: NodeMeasure) -> None:
        """Remember how full the node was at a sample in between, for the forecast."""
        if node.scope == "machine" or node.memory is not None:  # else its page cache is in it
            self._node.push(now_ns, {_USED: node.known_used_bytes})

    def measure(
        self, now_ns: int, known: Known, tmpfs_uids: Collection[str] = (), sampled: NodeMeasure | None = None
    ) -> Measured:
        """Return the node and all its pods as they are now, with stalls, shares, the ledger and forecasts.

        `sampled` is what the collector said of the node a moment ago, if it was asked: then there is a hurry, and what
        only shows something, or only prepares the next measurement, is left for that one.

        Raises:  CgroupGone: the node's cgroup was removed.
        Cost:    0.1 ms more than the collector while nothing stalls (tests/bench/tick.py).
        """
        stalled = self._read_stalls(now_ns)
        stalls = self._window.rows()
        measured = self._collector.everything(stalls, tmpfs_uids, stalls.get(NODE), sampled)
        now_ns = measured.now_ns
        self.note(now_ns, measured.node)
        if stalled or (sampled is None and self._ledger.is_due(now_ns)):
            self._charge(now_ns, known, measured, stalled)
        shares = {uid: found for uid in stalls if uid != NODE and (found := self._pod_shares(uid, now_ns))}
        if sampled is None and self._limited.is_due(now_ns):
            self._pod_forecasts = self._forecast_pods(now_ns, shares)
        forecasts = self._pod_forecasts
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
        window = self._full_stalls.look(now_ns, facts, stalls, shares)
        node = msgspec.structs.replace(measured.node, shares=self._node_shares(now_ns, measured.node))
        node = msgspec.structs.replace(node, forecast=self._forecast_node(known, node))
        ledger = self._ledger.view(now_ns)
        return msgspec.structs.replace(measured, node=node, pods=pods, ledger=ledger, stall_window=window)

    def restart_stall_window(self) -> None:
        """Restart the window of the stall net, after something was done about the stalls."""
        self._full_stalls.restart()

    def shares_of(self, cgroup_id: int, now_ns: int) -> StallShares | None:
        """Return the stall shares of one cgroup, a container's say: as its pressure file has them, else derived.

        None: it is gone, or nothing is known of it.
        """
        if self._collector.has_pressure_files:
            return self._collector.pressure_of(cgroup_id)
        return self._shares.shares(cgroup_id, now_ns)

    # What each cgroup stalled since the last call. The map is read only when the totals say that something changed.
    def _read_stalls(self, now_ns: int) -> dict[int, StallGrowth]:
        stalled: dict[int, StallGrowth] = {}
        by_pod: dict[str, StallGrowth] = {}
        totals = self._watch.totals()
        seen: tuple[int, ...] = ()
        if totals:
            seen = (totals.episodes, totals.compactions, totals.memstalls, totals.node_changed_ts_ns)
            seen += totals.lost_ends, totals.missed_runs  # which may have left a row open
        if seen != self._seen:
            self._seen = seen
            rows = self._stall_rows()
            stalled = self._sums.push(rows)
            by_pod = self._window.add(now_ns, stalled, self._watch.index.subtree_pod)
            if not self._collector.has_pressure_files:
                self._shares.push(now_ns, rows, self._collector.task_counts(self._shares.stalled_since(rows)))
        else:
            self._window.forget_older(now_ns)
        if totals and not self._collector.has_pressure_files:
            total_ns = lasting_ns(totals.node_some_ns, totals.node_changed_ts_ns, totals.node_stalled, now_ns)
            if self._node_share is None or total_ns < self._node_share.total_ns:
                self._node_share = DecayingShare(now_ns)
            self._node_share.push(now_ns, total_ns)
        self.news = StallNews(by_pod)
        return stalled

    # Most of those that ever stalled did not again: what reads the same is not decoded again.
    def _stall_rows(self) -> list[CgroupStall]:
        before, self._decoded = self._decoded, {}
        for key, value in self._watch.signals.stalls():
            known = before.get(key)
            row = known[1] if known and known[0] == value else decode_stall(key, value, histograms=False)
            self._decoded[key] = (value, row)
        return [row for _, row in self._decoded.values()]

    def _charge(self, now_ns: int, known: Known, measured: Measured, stalled: Mapping[int, StallGrowth]) -> None:
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

    def _pod_shares(self, uid: str, now_ns: int) -> StallShares | None:
        index = self._watch.index
        cgroup_id = index.pod_cgroup(uid)
        if cgroup_id is None:
            return None
        if self._collector.has_pressure_files:
            return self._collector.pressure_of(cgroup_id)
        children = [each for each in self._shares if each != cgroup_id and index.subtree_pod(each) == uid]
        return self._shares.shares_of_parent(cgroup_id, children, now_ns)

    # The longest of a pod's containers with one task each: there, when it waits, no task runs. None: there is none.
    def _full_of_container(self, uid: str, now_ns: int) -> float | None:
        index = self._watch.index
        found = [self._shares.shares(each, now_ns) for each in self._shares if index.subtree_pod(each) == uid]
        return max((each.full.avg10 for each in found if each is not None and each.full is not None), default=None)

    def _node_shares(self, now_ns: int, node: NodeMeasure) -> StallShares | None:
        if node.psi_some is not None or self._node_share is None:
            return None
        return StallShares(self._node_share.line(now_ns), None, derived=True)

    def _forecast_node(self, known: Known, node: NodeMeasure) -> NodeForecast:
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

    # By uid, the first of its limited cgroups.
    def _forecast_pods(self, now_ns: int, shares: Mapping[str, StallShares]) -> Mapping[str, TimeTo]:
        limited: dict[int, LimitedCgroup] = {
            each.cgroup_id: each
            for each in self._collector.limited(frozenset(self._watch.index.pod_cgroups().values()))
        }
        self._limited.push(now_ns, {cgroup_id: each.used_bytes for cgroup_id, each in limited.items()})
        rooms = {cgroup_id: each.limit_bytes - each.used_bytes for cgroup_id, each in limited.items()}
        forecasts: dict[str, TimeTo] = {}
        for cgroup_id in self._limited.soonest(rooms, SOONEST):
            uid = limited[cgroup_id].uid
            stalled_ratio = shares[uid].some.avg10 / 100 if uid in shares else 0.0
            found = time_to(rooms[cgroup_id], self._limited.growths(cgroup_id), stalled_ratio)
            if found and (uid not in forecasts or found.point_ns < forecasts[uid].point_ns):
                forecasts[uid] = found
        return forecasts


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
