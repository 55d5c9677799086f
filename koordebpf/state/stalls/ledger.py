"""The ledger: which cgroup stalled, and which others made it stall. Pure; knows no thresholds.

A stall at a limit below the node is its victim's own. A stall for the node's shortage is charged to the pods and the
cgroups outside all pods that grew, each in proportion to its growth beyond its request. Growth is that of
memory.current, page cache included, and of swap: any charged page brings reclaim nearer, also one that is swapped out
at once, and one that comes back was charged before. Growth that fits into the request is no cause, for that memory was
promised; a cgroup outside all pods, and a pod without a request, was promised none.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence

import msgspec

from koordebpf.slo.pods import qos
from koordebpf.state.measured import LedgerRow, LedgerView, Party
from koordebpf.state.stalls.windows import StallGrowth
from koordebpf.state.view import PodView
from koordebpf.units import MIB, NS_PER_S

OWN_LIMIT = Party("own limit", "own limit", "own limit")
UNATTRIBUTED = Party("unattributed", "unattributed", "unattributed")
OTHERS = Party("others", "others", "others")
# Bounds, so that neither the table nor a view of it grows with the number of pods; what does not fit is `others`.
_CAUSES = 8  # named for one shortage, the largest ones
_PAIRS = 512  # of victim and cause in the window
_ROWS = 64  # of a view, the largest ones
_PARTIES = 4096  # whose growth is followed
# Why: a CPU charges a memory cgroup 64 pages ahead (MEMCG_CHARGE_BATCH), so that a few of them are no growth.
_NOISE_BYTES = MIB
Pair = tuple[str, str]  # ids of victim and cause


def is_latency_sensitive(pod: PodView) -> bool:
    """Judge a pod as `slo.pods.qos` judges its QoS classes."""
    return qos.is_latency_sensitive(pod.koord_qos, pod.kube_qos)


def caused_stalls(ledger: LedgerView | None, pods: Collection[PodView]) -> Mapping[str, int]:
    """Return uid → nanoseconds that latency-sensitive pods stalled on account of that pod, themselves left out.

    Cost:    30 ns a pod, and nothing while no pod stalls.
    """
    if ledger is None or not ledger.rows:
        return {}
    stalled = {row.victim.uid for row in ledger.rows}
    victims = {pod.uid for pod in pods if pod.uid in stalled and is_latency_sensitive(pod)}
    caused: Counter[str] = Counter()
    for row in ledger.rows:
        cause, victim = row.cause.uid, row.victim.uid
        if cause is not None and victim in victims and cause != victim:
            caused[cause] += row.ns
    return caused


def largest_cause_ns(ledger: LedgerView | None, pods: Collection[PodView]) -> int:
    """Return what latency-sensitive pods stalled on account of the largest cause of whatever kind, or of themselves.

    A pod that is gone is none any more, nor is a limit of the victim's own.
    """
    known = {pod.uid: pod for pod in pods}
    caused: Counter[str] = Counter()
    for row in ledger.rows if ledger is not None else ():
        victim, cause = known.get(row.victim.uid or ""), row.cause
        is_gone = cause.kind == "pod" and cause.uid not in known
        if victim is None or not is_latency_sensitive(victim):
            continue
        if cause.kind != "own limit" and not is_gone:
            caused[cause.uid or cause.id] += row.ns
    return max(caused.values(), default=0)


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What a pod or a cgroup outside all pods holds, in memory and in swap, and what it was promised. Bytes."""

    party: Party
    usage_bytes: int
    request_bytes: int = 0


class Charge(msgspec.Struct, frozen=True, gc=False):
    """What one push added to one pair."""

    victim: Party
    cause: Party
    ns: int


def split(total: int, weights: Sequence[int]) -> list[int]:
    """Return `total` in whole parts in proportion to `weights`: the largest remainders get what is left over.

    The parts sum to `total`, and no part is a whole unit off its exact share. Equal remainders: the first ones.

    >>> split(10, [1, 1, 1])
    [4, 3, 3]
    """
    whole = sum(weights)
    if whole <= 0:
        raise ValueError(f"weights must have a sum above zero, not {whole}")
    parts = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda at: -(total * weights[at] % whole))
    for at in by_remainder[: total - sum(parts)]:
        parts[at] += 1
    return parts


class _Growing:
    """How much one party grew beyond its request: in the slice that runs, and in those of the window."""

    __slots__ = ("drawn_up", "last", "lowest", "seen_slice", "total")

    def __init__(self, excess: int) -> None:
        self.last = self.lowest = excess
        self.drawn_up = 0  # the largest rise within the slice, whatever fell before or after it
        self.total = 0  # of the window, the running slice included
        self.seen_slice = 0


class Ledger:
    """Charges every stalled nanosecond of the last `window_ns` to a cause, in slices of `slice_ns`.

    A party that is new since the push before started with nothing: all it holds is growth. What is held at the first
    push of all is no party's growth.

    Cost:    a push without stalls 0.6 µs a party; the table holds at most 512 pairs in each slice.
    """

    def __init__(self, window_ns: int = 60 * NS_PER_S, slice_ns: int = NS_PER_S) -> None:
        """Begin empty.

        Raises:  ValueError: the window is no whole number of slices.
        """
        if slice_ns <= 0 or window_ns < slice_ns or window_ns % slice_ns:
            raise ValueError(f"window_ns {window_ns} must be a multiple of slice_ns {slice_ns}")
        self.window_ns = window_ns
        self._slice_ns = slice_ns
        self._slices: deque[tuple[int, dict[Pair, int]]] = deque()  # number of the slice, what was charged in it
        self._sums: dict[Pair, int] = {}
        self._runs: dict[Pair, tuple[int, int]] = {}  # first and last slice of the uninterrupted charge
        self._parties: dict[str, Party] = {each.id: each for each in (OWN_LIMIT, UNATTRIBUTED, OTHERS)}
        self._growing: dict[str, _Growing] = {}
        self._growth: deque[tuple[int, dict[str, int]]] = deque()
        self._now = -1  # the running slice
        self._looked = -1  # quarter of a slice
        self._has_usage = False

    def is_due(self, now_ns: int) -> bool:
        """Tell whether growth should be looked at again even though nothing stalled: four times a slice."""
        return 4 * now_ns // self._slice_ns != self._looked

    def push(self, now_ns: int, stalls: Mapping[Party, StallGrowth], usages: Sequence[Usage]) -> list[Charge]:
        """Take what stalled since the push before, and what every party holds now; return what was charged.

        Args:
            now_ns: not before that of the last push.
            stalls: by the cgroup whose own tasks stalled.
            usages: of all pods and of all cgroups outside them, none within another.
        """
        self._looked = 4 * now_ns // self._slice_ns
        self._turn_to(now_ns // self._slice_ns)
        self._grow(usages)
        charges: list[Charge] = []
        causes: list[tuple[Party, int]] | None = None
        for victim, stall in stalls.items():
            own_ns = stall.own_limit_ns
            if own_ns:
                charges.append(self._charge(victim, OWN_LIMIT, own_ns))
            if (shortage_ns := stall.total_ns - own_ns) > 0:
                if causes is None:
                    causes = self._causes()
                parts = split(shortage_ns, [weight for _, weight in causes])
                charges += [self._charge(victim, cause, ns) for (cause, _), ns in zip(causes, parts, strict=True) if ns]
        return charges

    def view(self, now_ns: int) -> LedgerView:
        """Return the ledger of the window that ends at `now_ns`."""
        self._turn_to(now_ns // self._slice_ns)
        total = sum(self._sums.values())
        unattributed = sum(ns for (_, cause), ns in self._sums.items() if cause == UNATTRIBUTED.id)
        largest = sorted(self._sums.items(), key=lambda item: (-item[1], item[0]))
        rows = [self._row(pair, ns) for pair, ns in largest[:_ROWS]]
        if rest := largest[_ROWS:]:
            runs = [self._runs[pair] for pair, _ in rest]
            run = (min(first for first, _ in runs), max(last for _, last in runs))
            rows.append(self._row_of(OTHERS, OTHERS, sum(ns for _, ns in rest), run))
        return LedgerView(self.window_ns, total, unattributed, tuple(rows))

    def _row(self, pair: Pair, ns: int) -> LedgerRow:
        return self._row_of(self._parties[pair[0]], self._parties[pair[1]], ns, self._runs[pair])

    def _row_of(self, victim: Party, cause: Party, ns: int, run: tuple[int, int]) -> LedgerRow:
        return LedgerRow(victim, cause, ns, run[0] * self._slice_ns, (run[1] + 1) * self._slice_ns)

    # Starts slice `number` if it has not started, and forgets what is older than the window.
    def _turn_to(self, number: int) -> None:
        if number <= self._now:
            return
        self._now = number
        for growing in self._growing.values():
            growing.drawn_up = 0
            growing.lowest = growing.last
        oldest = number - self.window_ns // self._slice_ns + 1
        while self._slices and self._slices[0][0] < oldest:
            for pair, ns in self._slices.popleft()[1].items():
                self._sums[pair] -= ns
                if not self._sums[pair]:
                    del self._sums[pair], self._runs[pair]
        while self._growth and self._growth[0][0] < oldest:
            for party_id, grown in self._growth.popleft()[1].items():
                self._growing[party_id].total -= grown
        for party_id in [key for key, each in self._growing.items() if each.seen_slice < oldest]:
            del self._growing[party_id]  # its growth is older still
        named = {each for pair in self._sums for each in pair} | self._growing.keys()
        named |= {OWN_LIMIT.id, UNATTRIBUTED.id, OTHERS.id}
        for party_id in self._parties.keys() - named:
            del self._parties[party_id]

    def _grow(self, usages: Sequence[Usage]) -> None:
        slice_growth: dict[str, int] | None = None
        for usage in usages:
            party_id = usage.party.id
            excess = usage.usage_bytes - usage.request_bytes
            excess = max(excess, 0)
            growing = self._growing.get(party_id)
            if growing is None:
                if len(self._growing) >= _PARTIES:
                    continue
                growing = self._growing[party_id] = _Growing(0 if self._has_usage else excess)
            growing.seen_slice = self._now
            if excess == growing.last:
                continue
            self._parties[party_id] = usage.party  # with the name as it is known now
            growing.last = excess
            if excess < growing.lowest:
                growing.lowest = excess
            elif (more := excess - growing.lowest - growing.drawn_up) > 0:
                growing.drawn_up += more
                growing.total += more
                if slice_growth is None:
                    slice_growth = self._growth_of_slice()
                slice_growth[party_id] = growing.drawn_up
        self._has_usage = self._has_usage or bool(usages)

    def _growth_of_slice(self) -> dict[str, int]:
        if not self._growth or self._growth[-1][0] != self._now:
            self._growth.append((self._now, {}))
        return self._growth[-1][1]

    # The causes of a shortage now, with their weights. Never empty.
    def _causes(self) -> list[tuple[Party, int]]:
        grown = sorted((-each.total, party_id) for party_id, each in self._growing.items() if each.total > _NOISE_BYTES)
        if not grown:
            return [(UNATTRIBUTED, 1)]
        causes = [(self._parties[party_id], -total) for total, party_id in grown[:_CAUSES]]
        if rest := -sum(total for total, _ in grown[_CAUSES:]):
            causes.append((OTHERS, rest))
        return causes

    def _charge(self, victim: Party, cause: Party, ns: int) -> Charge:
        if not self._slices or self._slices[-1][0] != self._now:
            self._slices.append((self._now, {}))
        charged = self._slices[-1][1]
        pair = (victim.id, cause.id)
        if pair not in self._sums and len(self._sums) >= _PAIRS:
            victim = cause = OTHERS
            pair = (OTHERS.id, OTHERS.id)
        self._parties[victim.id] = victim
        self._parties[cause.id] = cause
        charged[pair] = charged.get(pair, 0) + ns
        self._sums[pair] = self._sums.get(pair, 0) + ns
        first, last = self._runs.get(pair, (self._now, self._now))
        # Pushes are up to a slice apart and drift: one empty slice between two charges is no interruption.
        self._runs[pair] = (first if self._now - last <= 2 else self._now, self._now)
        return Charge(victim, cause, ns)
