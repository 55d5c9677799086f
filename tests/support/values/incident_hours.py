"""An hour of a node as an agent records it, a round each second: memory that moves, a shortage, stalls, an eviction."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickFrame, TickSettings
from koordebpf.kernel.signals import SignalQuality
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.state.measured import LedgerRow, LedgerView, Party, PodMeasure, PsiLine, StallParts
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.recorder.ring import Run
from koordebpf.store.recorder.rounds import RoundEncoder
from koordebpf.store.recorder.stores import FileStore
from koordebpf.store.recorder.values import RecordedEvent, signals_seen
from koordebpf.tools.recorder.rounds import DecidesAgain
from koordebpf.units import GIB, MIB, NS_PER_S, PAGE_BYTES
from tests.support.values.builders import NOW_NS, frame, ls_pod, pod
from tests.support.values.rounds import WALL_NS

_QUALITY = SignalQuality("co-re", "timed", "traced", "one pass", "backend co-re: each stall is timed")
_CAPACITY_MIB = 128 << 10


def record_hour(path: Path, pods: int, seconds: int = 3600) -> None:
    """Write a new recording. From the middle on memory is short for a minute, and one pod is evicted at its begin."""
    hour = _Hour(pods, seconds)
    store, encoder, again = FileStore(path, Run("0123abcd", "node-1"), GIB), RoundEncoder(), DecidesAgain()
    quality = [signals_seen(_QUALITY, "6.12.0", WALL_NS / NS_PER_S)]
    for second in range(seconds):
        tick = hour.at(second)
        made = encoder.encode(tick, again.decide(tick), WALL_NS + second * NS_PER_S)
        events = quality if second == 0 else hour.events() if second == hour.short_at + 2 else []
        store.add(made, b"", events)
    store.close()


class _Hour:
    def __init__(self, pods: int, seconds: int) -> None:
        made = [pod(f"job-{number:04}", anon=1) if number % 3 else ls_pod(f"web-{number:04}") for number in range(pods)]
        self._frame = frame(made, used=1, capacity=f"{_CAPACITY_MIB}Mi", total_bytes=_CAPACITY_MIB * MIB)
        self._chance = random.Random(pods)
        self._used = [self._chance.uniform(0.5, 1.5) * 0.6 * _CAPACITY_MIB * MIB / pods for _ in range(pods)]
        self.short_at = seconds // 2
        self._short_s = min(60, seconds // 4)
        self._some_us = 0
        self._victim = ""

    def at(self, second: int) -> TickFrame:
        is_short = self.short_at <= second < self.short_at + self._short_s
        now_ns = NOW_NS + second * NS_PER_S
        measures = [
            self._measure(number, each.uid, each.cgroup_id, is_short=is_short)
            for number, each in enumerate(self._frame.measured.pods)
        ]
        hog = measures[1]
        if is_short and hog.memory is not None:
            grown = replace(hog.memory, active_anon_bytes=hog.memory.active_anon_bytes + 24 * GIB)
            measures[1] = replace(hog, memory=grown, growth_bytes_per_s=400.0 * MIB)
            self._victim = hog.uid
        used = sum(each.memory.held_bytes for each in measures if each.memory) + 6 * GIB
        self._some_us += 300_000 if is_short else 2_000
        some = PsiLine(1.0, 1.0, 1.0, self._some_us)
        node = replace(self._frame.measured.node, used_bytes=used, psi_some=some, psi_full=replace(some, avg10=0.0))
        ledger = self._ledger(is_short=is_short, now_ns=now_ns)
        measured = replace(
            self._frame.measured, now_ns=now_ns, since_ns=now_ns - 1, node=node, pods=tuple(measures), ledger=ledger
        )
        guards = GuardFacts(now_ns=now_ns, source="file", pods_synced_ns=now_ns)
        return TickFrame(frame=replace(self._frame, measured=measured), settings=TickSettings(), guards=guards)

    def _measure(self, number: int, uid: str, cgroup_id: int | None, *, is_short: bool) -> PodMeasure:
        moved = self._chance.uniform(-0.01, 0.01) * self._used[number]
        self._used[number] += moved
        anon = int(self._used[number]) // PAGE_BYTES * PAGE_BYTES
        memory = self._frame.measured.pods[number].memory
        assert memory is not None
        return PodMeasure(
            uid=uid,
            cgroup_id=cgroup_id,
            memory=replace(memory, usage_bytes=anon, active_anon_bytes=anon, inactive_anon_bytes=0),
            growth_bytes_per_s=moved,
            stall=StallParts(NS_PER_S, 40_000_000 + number * 9_000, 0) if is_short and number % 9 == 0 else None,
        )

    def _ledger(self, *, is_short: bool, now_ns: int) -> LedgerView:
        names = [f"{each.metadata.namespace}/{each.metadata.name}" for each in self._frame.pods]
        parties = [Party(str(number), "pod", name) for number, name in enumerate(names[:20])]
        rows = tuple(
            LedgerRow(parties[victim], parties[cause], (victim + 1) * (cause + 1) * 900_000, now_ns, now_ns)
            for victim in range(0, len(parties), 3)
            for cause in (1, 2, 4)
            if is_short and cause < len(parties)
        )
        return LedgerView(60 * NS_PER_S, sum(row.ns for row in rows), 0, rows)

    def events(self) -> list[RecordedEvent]:
        now_ns, wall_s = NOW_NS + self.short_at * NS_PER_S, WALL_NS / NS_PER_S + self.short_at
        name = self._victim.removeprefix("uid-spark-")
        outcome = Outcome(self._victim, "spark", name, "api", Result.DONE, "gone", now_ns + 5, sent_ns=now_ns + 900_000)
        decided = {"outcomes": [], "crossed_ns": now_ns - 4_000_000, "decided_ns": now_ns + 5, "wall_s": wall_s}
        entry = {"uid": self._victim, "since_ns": now_ns, "credit_bytes": 24 * GIB}
        return [
            RecordedEvent("PlanDecided", wall_s, decided),
            RecordedEvent("OutcomeArrived", wall_s + 0.1, {"outcome": msgspec.to_builtins(outcome), "now_ns": now_ns}),
            RecordedEvent("MemoryReleased", wall_s + 1.4, {"entry": entry, "now_ns": now_ns + 1_400_000_000}),
        ]
