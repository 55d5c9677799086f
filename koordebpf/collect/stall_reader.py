"""What cgroups stalled for memory since the last measurement, over the last seconds, and in which share of the time."""

from __future__ import annotations

from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.events.layout import decode_stall
from koordebpf.events.records import CgroupStall
from koordebpf.state.measured import NodeMeasure, StallParts, StallShares
from koordebpf.state.stalls.shares import DecayingShare, ShareTable, lasting_ns
from koordebpf.state.stalls.windows import StallGrowth, StallSums, StallWindow


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
