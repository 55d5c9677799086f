"""Who stalled how long, for what and on whose account, since a moment: values and histograms by pod. Pure.

The sums are those of the map `stalls`, and the ledger's charges added up as they come: nothing is sent, nothing can be
lost from them but what `losses` names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

import msgspec

from koordebpf.collect.cluster_view import ClusterView
from koordebpf.collect.history import NodeHistory
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.errors import CgroupGone
from koordebpf.events.records import CgroupStall, StallSum
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.report.pages.plan import ledger_lines
from koordebpf.report.record_line import WIDTH, shortened
from koordebpf.state.measured import LedgerRow, LedgerView, Party
from koordebpf.state.stalls.ledger import UNATTRIBUTED, Charge
from koordebpf.units import NS_PER_MS, format_ns

_DUE_NS = 250 * NS_PER_MS  # Why: the ledger looks at growth four times a second
# Member of CgroupStall → its name for people. `throttled` is a part of the reclaim rows, and no part of the total.
CAUSES = {
    "global_": "reclaim, the node is short",
    "limit": "reclaim at a limit below the node",
    "compaction": "compaction",
    "other_global": "refault or swap-in, the node is short",
    "other_limit": "refault or swap-in at a limit below the node",
    "throttled": "throttled, a part of reclaim",
}
_NOT_IN_TOTAL = ("throttled",)
_BAR = 38
_NAME = 30
_HEAD = ("NODE", "LIMIT", "COMPACT", "OTHER", "TOTAL")


class ChargeBook:
    """Measures the node while a trace runs, and adds up what its ledger charges."""

    def __init__(self, watch: NodeWatch) -> None:
        self._known = ClusterView()
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

    def drain(self, pods: Collection[str] = ()) -> LedgerView:
        """Return what was charged since the last `drain`, the largest first.

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


class CauseSum(msgspec.Struct, frozen=True):
    """Stalls of one cause. `hist[i]` counts those of [2^i, 2^(i+1)) µs, slot 0 also shorter ones; cut after the last.

    `max_ns`: the longest; where an older one was longer, no more than that: the end of its slot, or the total.
    """

    cause: str
    count: int
    total_ns: int
    max_ns: int
    hist: tuple[int, ...]


class PodStalls(msgspec.Struct, frozen=True):
    """What one pod, or one cgroup outside all pods, stalled."""

    name: str
    total_ns: int  # of all its tasks: two that wait at once count twice
    causes: tuple[CauseSum, ...]

    def cause_ns(self, *names: str) -> int:
        """Return the sum over these causes."""
        return sum(each.total_ns for each in self.causes if each.cause in names)


class Summary(msgspec.Struct, frozen=True, tag="summary", tag_field="kind"):
    """A line of `trace --json --summary`: what was stalled in the last `seconds`, the longest first."""

    time: str
    seconds: float
    total_ns: int
    pods: tuple[PodStalls, ...]
    ledger: LedgerView | None = None  # who caused it; None: not measured
    losses: tuple[str, ...] = ()  # what is not in it


class StallBook:
    """Adds up what each cgroup's sums grew by; a removed cgroup keeps its sum."""

    def __init__(self) -> None:
        self._last: dict[int, CgroupStall] = {}
        self._sums: dict[str, dict[str, CauseSum]] = {}

    def push(self, stalls: Iterable[CgroupStall], name_of: Callable[[int], str | None]) -> None:
        """Take the sums as they are now; `name_of` names a cgroup's pod. None: not needed."""
        last: dict[int, CgroupStall] = {}
        for stall in stalls:
            last[stall.cgroup_id] = stall
            before = self._last.get(stall.cgroup_id)
            if before == stall:
                continue
            if before and any(getattr(before, cause).count > getattr(stall, cause).count for cause in CAUSES):
                before = None  # another cgroup under the old id
            for cause in CAUSES:
                grown = _grown(cause, getattr(stall, cause), getattr(before, cause) if before else StallSum())
                if grown and (name := name_of(stall.cgroup_id)) is not None:
                    sums = self._sums.setdefault(name, {})
                    sums[cause] = _added(sums[cause], grown) if cause in sums else grown
        self._last = last

    def drain(self) -> tuple[PodStalls, ...]:
        """Return what grew since the last `drain`, the longest first."""
        sums, self._sums = self._sums, {}
        pods = [_pod_stalls(name, causes) for name, causes in sums.items()]
        return tuple(sorted(pods, key=lambda pod: (-pod.total_ns, pod.name)))


def summary_lines(summary: Summary, most: int = 20) -> list[str]:
    """Return the totals of all pods, who caused them, and the histograms of the `most` that stalled longest."""
    pods, seconds = summary.pods, summary.seconds
    if not pods:
        return [f"no stall in {seconds:.1f} s"]
    lines = [
        f"{format_ns(summary.total_ns)} stalled in {seconds:.1f} s, all tasks added up",
        "",
        f"{'POD':<{_NAME}} " + " ".join(f"{name:>9}" for name in _HEAD),
    ]
    for pod in pods[:most]:
        cells = (
            pod.cause_ns("global_"),
            pod.cause_ns("limit"),
            pod.cause_ns("compaction"),
            pod.cause_ns("other_global", "other_limit"),
            pod.total_ns,
        )
        shown = " ".join(f"{format_ns(ns) if ns else '·':>9}" for ns in cells)
        lines.append(f"{shortened(pod.name, _NAME):<{_NAME}} {shown}")
    if len(pods) > most:
        rest_ns = sum(pod.total_ns for pod in pods[most:])
        lines.append(f"{f'{len(pods) - most} more':<{_NAME}} {format_ns(rest_ns):>{len(_HEAD) * 10 - 1}}")
    if summary.ledger is not None:
        lines += ["", *ledger_lines(summary.ledger, most)]
    for pod in pods[:most]:
        for each in pod.causes:
            lines += ["", *_histogram(pod.name, each)]
    return lines


def _histogram(name: str, each: CauseSum) -> list[str]:
    head = f"{shortened(name, _NAME)}: {CAUSES[each.cause]}"
    lines = [
        head[:WIDTH],
        f"  {each.count} stalls, {format_ns(each.total_ns)} in all, the longest {format_ns(each.max_ns)}",
    ]
    first = next((slot for slot, count in enumerate(each.hist) if count), 0)
    widest = max(each.hist, default=0)
    for slot in range(first, len(each.hist)):
        count = each.hist[slot]
        low = format_ns(1000 << slot) if slot else "0"
        bar = "*" * max(round(_BAR * count / widest), 1 if count else 0)
        lines.append(f"  {low:>8} – {format_ns(2000 << slot):<8} {count:>9} |{bar:<{_BAR}}|")
    return lines


def _grown(cause: str, now: StallSum, before: StallSum) -> CauseSum | None:
    count = now.count - before.count
    if count <= 0:
        return None
    old = before.hist or (0,) * len(now.hist)
    hist = [max(new - was, 0) for new, was in zip(now.hist, old, strict=True)]
    while hist and not hist[-1]:
        hist.pop()
    # The kernel keeps the longest since load: of a later span it is known only if that span made it longer.
    total_ns = now.total_ns - before.total_ns
    longest = now.max_ns if now.max_ns > before.max_ns else min(now.max_ns, 1000 << len(hist), total_ns)
    return CauseSum(cause, count, total_ns, longest, tuple(hist))


def _added(one: CauseSum, other: CauseSum) -> CauseSum:
    longer, shorter = (one.hist, other.hist) if len(one.hist) >= len(other.hist) else (other.hist, one.hist)
    hist = tuple(
        count + (shorter[slot] if slot < len(shorter) else 0) for slot, count in enumerate(longer)
    )  # fmt: skip
    total_ns = one.total_ns + other.total_ns
    return CauseSum(one.cause, one.count + other.count, total_ns, max(one.max_ns, other.max_ns), hist)


def _pod_stalls(name: str, causes: dict[str, CauseSum]) -> PodStalls:
    ordered = tuple(causes[cause] for cause in CAUSES if cause in causes)
    return PodStalls(name, sum(each.total_ns for each in ordered if each.cause not in _NOT_IN_TOTAL), ordered)
