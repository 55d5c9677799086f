"""What a round says of the node as it was, and how long evicted pods would have stayed. Pure."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Collection, Mapping

import msgspec

from koordebpf.decision.decide_tick import TickFrame
from koordebpf.state.stalls.ledger import is_latency_sensitive
from koordebpf.state.view import NodeView, PodView
from koordebpf.units import NS_PER_S, NS_PER_US, gained

_MOST = 512  # pods that ended. Why: the last ones tell what runs now, and a median needs no more
# Why: one round in 5 s is the slowest pace that is kept; what is longer is a gap, of which nothing is known.
LONGEST_NS = 10 * NS_PER_S


class Lifetimes:
    """Ages of the pods of one node, from the first round that shows them. Give it the rounds in order of time."""

    def __init__(self) -> None:
        self._since_ns: dict[str, int] = {}
        self._first: frozenset[str] | None = None  # pods of the first round: how old they were is not known
        self._ended: deque[int] = deque()
        self._sorted: list[int] = []
        self._now_ns = 0

    def observe(self, now_ns: int, uids: Collection[str], evicted: Collection[str]) -> None:
        """Take one round: the pods that there are, and those that were evicted lately."""
        if self._first is None or now_ns < self._now_ns:
            self._first, self._since_ns = frozenset(uids), {}
        self._now_ns = now_ns
        if self._since_ns.keys() == uids:
            return
        for uid in self._since_ns.keys() - uids:
            since_ns = self._since_ns.pop(uid)
            if uid not in self._first and uid not in evicted:
                self._add(now_ns - since_ns)
        for uid in uids:
            self._since_ns.setdefault(uid, now_ns)

    def left_ns(self, age_ns: int) -> int | None:
        """Return how much longer a pod of this age stays: the median of those that grew older. None: none did."""
        older = self._sorted[bisect_right(self._sorted, age_ns) :]
        return older[len(older) // 2] - age_ns if older else None

    def _add(self, life_ns: int) -> None:
        if len(self._ended) >= _MOST:
            self._sorted.remove(self._ended.popleft())
        self._ended.append(life_ns)
        insort(self._sorted, life_ns)


class Observed(msgspec.Struct, frozen=True):
    """One round.

    `passed_ns`  since the round before; 0: it is the first, or the gap is too long to say anything of it.
    `evicted`    pods that were really evicted since then, as they were seen before, and their ages.
    `waiting`    evicted pods whose memory was not back yet.
    `stall_ns`   of the latency-sensitive pods in that time, added up, for the node's memory; None: not measured.
    """

    tick: TickFrame
    view: NodeView
    pods: Mapping[str, PodView]
    waiting: frozenset[str]
    passed_ns: int = 0
    evicted: tuple[tuple[PodView, int], ...] = ()
    stall_ns: int | None = None
    is_first: bool = False  # of an agent's run: nothing is carried over from before it


class Observer:
    """Compares each round with the one before it. Give it the rounds of one node in order of time."""

    def __init__(self) -> None:
        self._last: Observed | None = None
        self._known: frozenset[tuple[str, int]] = frozenset()
        self._seen: dict[str, tuple[PodView, int]] = {}  # and since when
        self._node_us: int | None = None

    def observe(self, tick: TickFrame, view: NodeView) -> Observed:
        """Return what this round says; `view` is `tick_view` of it. Cost: 20 µs at 110 pods."""
        last, now_ns = self._last, view.now_ns
        is_first = last is None or now_ns < last.view.now_ns or tick.frame.startedNs != last.tick.frame.startedNs
        gap_ns = 0 if is_first or last is None else now_ns - last.view.now_ns
        sent = frozenset((each.uid, each.at_ns) for each in tick.frame.evictions)
        evicted: tuple[tuple[PodView, int], ...] = ()
        if not is_first and sent != self._known:
            pods = (self._seen.get(uid) for uid, _ in sorted(sent - self._known, key=lambda each: each[1]))
            evicted = tuple((pod, now_ns - since_ns) for pod, since_ns in filter(None, pods))
        passed_ns = gap_ns if gap_ns <= LONGEST_NS else 0
        self._known = sent
        pods_now = {pod.uid: pod for pod in view.pods}
        before = {} if is_first else self._seen
        self._seen = {uid: (pod, before[uid][1] if uid in before else now_ns) for uid, pod in pods_now.items()}
        self._last = Observed(
            tick=tick,
            view=view,
            pods=pods_now,
            waiting=frozenset(each.uid for each in tick.frame.pending),
            passed_ns=passed_ns,
            evicted=evicted,
            stall_ns=self._stall_ns(view, passed_ns),
            is_first=is_first,
        )
        return self._last

    # By the pods' own records where stalls are timed; else the node's memory.pressure, which says it of any task.
    def _stall_ns(self, view: NodeView, passed_ns: int) -> int | None:
        line, before_us = view.measured.node.psi_some, self._node_us
        self._node_us = None if line is None else line.total_us
        if view.measured.ledger is not None:
            shares = [
                (stall.global_ns + stall.compaction_ns + stall.other_global_ns) / stall.window_ns
                for pod in view.pods
                if (stall := pod.stall) is not None and stall.window_ns and is_latency_sensitive(pod)
            ]
            return round(sum(shares) * passed_ns)
        if line is None:
            return None
        if before_us is None or not passed_ns:
            return 0
        stalled_us = gained(line.total_us, before_us)
        return None if stalled_us is None else stalled_us * NS_PER_US
