"""Who caused what was stalled, over a span of any length: the ledger's charges added up as they come."""

from __future__ import annotations

import time
from collections.abc import Collection

from koordebpf.collect.cluster_view import Known
from koordebpf.collect.history import NodeHistory
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.errors import CgroupGone
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.state.measured import LedgerRow, LedgerView, Party
from koordebpf.state.stalls.ledger import UNATTRIBUTED, Charge
from koordebpf.units import NS_PER_MS

_DUE_NS = 250 * NS_PER_MS  # Why: the ledger looks at growth four times a second


class ChargeBook:
    """Measures the node while a trace runs, and adds up what its ledger charges."""

    def __init__(self, watch: NodeWatch) -> None:
        self._known = Known()
        self._collector = MemoryCollector(watch.scope, watch.signals, watch.index)
        self._history = NodeHistory(watch, self._collector)
        self._rows: dict[tuple[str, str], LedgerRow] = {}
        self._begin_ns = time.monotonic_ns()
        self.due_ns = self._begin_ns

    def learn(self, state: ClusterState) -> None:
        """Know these pods: their names, and what they were promised."""
        self._known.learn(state)

    def measure(self) -> None:
        """Take what was stalled since the last call."""
        now_ns = time.monotonic_ns()
        self.due_ns = now_ns + _DUE_NS
        try:
            self._history.measure(now_ns, self._known)
        except CgroupGone:
            return  # the node's own: the trace continues until it is ended
        for charge in self._history.news.charges:
            self._add(charge, now_ns)

    def take(self, pods: Collection[str] = ()) -> LedgerView:
        """Return what was charged since the last `take`, the largest first.

        Args:
            pods: only what these stalled: name, namespace/name or uid; none: all.
        """
        self.measure()
        now_ns = time.monotonic_ns()
        rows = [row for row in self._rows.values() if not pods or _names(row.victim) & set(pods)]
        self._rows = {}
        begin_ns, self._begin_ns = self._begin_ns, now_ns
        ordered = sorted(rows, key=lambda row: (-row.ns, row.victim.label, row.cause.label))
        return LedgerView(
            now_ns - begin_ns,
            sum(row.ns for row in ordered),
            sum(row.ns for row in ordered if row.cause == UNATTRIBUTED),
            tuple(ordered),
        )

    def _add(self, charge: Charge, now_ns: int) -> None:
        pair = (charge.victim.id, charge.cause.id)
        before = self._rows.get(pair)
        since_ns, ns = (before.since_ns, before.ns) if before else (now_ns - _DUE_NS, 0)
        self._rows[pair] = LedgerRow(charge.victim, charge.cause, ns + charge.ns, since_ns, now_ns)

    def close(self) -> None:
        """Close what it measures with."""
        self._collector.close()


def _names(party: Party) -> set[str | None]:
    return {party.uid, party.name, party.name.rpartition("/")[2]} if party.kind == "pod" else set()
