"""A node whose jobs follow a plan made with a seed, and an agent that acts on it: rounds as a recording has them.

The jobs come, grow and end whatever the agent does, so that two agents with other settings meet the same load.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickDecision, TickFrame, TickSettings, decide_tick, tick_view
from koordebpf.policy.memory import EvictionSent, NodeMeasured, after, settled
from koordebpf.state.build import with_memory
from koordebpf.state.decision_memory import DecisionMemory
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.state.measured import LedgerView, StallParts
from koordebpf.state.view import NodeView
from koordebpf.store.recorder.ring import Run
from koordebpf.store.recorder.rounds import RoundEncoder
from koordebpf.store.recorder.stores import FileStore
from koordebpf.store.recorder.values import RecordedEvent
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import NOW_NS, PodAndMeasure, frame, ls_pod, pod
from tests.support.values.rounds import WALL_NS

SYSTEM_MIB, WEB_MIB = 150, 150


@dataclass(frozen=True)
class Job:
    """It starts at a second, grows by `rate` MiB/s to `mib` and ends at another one."""

    name: str
    start: int
    end: int
    mib: int
    rate: int

    def at(self, second: int) -> int | None:
        if not self.start <= second < self.end:
            return None
        return min(self.rate * (second - self.start + 1), self.mib)


def jobs_of(seed: int, seconds: int) -> list[Job]:
    """Return jobs of 60 to 220 MiB, on average five at a time."""
    draw, jobs = random.Random(seed), []
    start = 0.0
    while start < seconds:
        start += draw.expovariate(1 / 9)
        lasts = draw.randint(25, 70)
        mib = draw.randint(60, 220)
        jobs.append(Job(f"job-{len(jobs)}", int(start), int(start) + lasts, mib, draw.choice((10, 20, 40, 80))))
    return jobs


@dataclass(frozen=True)
class Played:
    """One round, and what the agent decided on it."""

    tick: TickFrame
    view: NodeView
    decision: TickDecision
    evicted: tuple[str, ...]  # names, really

    @property
    def used_mib(self) -> int:
        return self.view.known_used_bytes // MIB


def play(
    jobs: list[Job],
    seconds: int,
    threshold: int = 80,
    lower: int = 70,
    *,
    enforce: bool = True,
    settings: TickSettings = TickSettings(),  # noqa: B008 - frozen
    **asked: Any,
) -> Iterator[Played]:
    """Yield a round each second. What an agent evicts is gone at the next one; a dry run evicts nothing."""
    memory, killed = DecisionMemory(), set[str]()
    strategy = {"enable": True, "memoryEvictThresholdPercent": threshold, "memoryEvictLowerPercent": lower}
    for second in range(seconds):
        now_ns = NOW_NS + second * NS_PER_S
        sizes = {job.name: size for job in jobs if job.name not in killed and (size := job.at(second)) is not None}
        used = SYSTEM_MIB + WEB_MIB + sum(sizes.values())
        stalled_ms = max(used - 700, 0)  # of each second, from 70 % on
        web = _stalled(ls_pod("web", anon=WEB_MIB), stalled_ms)
        made = frame(
            [web, *(pod(name, anon=size) for name, size in sizes.items())],
            used=min(used, 1000), threshold=strategy, executor="cgroup", **asked,
        )  # fmt: skip
        ledger = LedgerView(window_ns=NS_PER_S, total_ns=0, unattributed_ns=0)
        measured = replace(made.measured, now_ns=now_ns, since_ns=now_ns - 1_000_000, ledger=ledger)
        facts = GuardFacts(now_ns=now_ns, source="file", pods_synced_ns=now_ns)
        tick = TickFrame(frame=replace(made, measured=measured), settings=settings, guards=facts)
        view = tick_view(tick)
        event = NodeMeasured(view, settings.eviction.pending_max_ns, keeps_released=False)
        memory = settled(memory, event).memory
        view = with_memory(view, memory)
        recent = memory.budget.recent(now_ns)
        effect = memory.effectiveness
        tick = replace(
            tick,
            frame=replace(tick.frame, pending=memory.pending, evictions=recent),
            guards=replace(facts, useless_evictions=effect.ineffective, useless_ns=effect.ineffective_ns),
        )
        decision = decide_tick(tick, view)
        victims = decision.carried.screening.allowed if decision.carried else ()
        if enforce:
            for each in victims:
                memory = after(memory, EvictionSent(each.candidate, now_ns, view.known_used_bytes, True, False))
                killed.add(each.candidate.name)
        names = tuple(each.candidate.name for each in victims) if enforce else ()
        yield Played(tick, view, decision, names)


def _stalled(each: PodAndMeasure, milliseconds: int) -> PodAndMeasure:
    assert each.measure is not None
    stall = StallParts(window_ns=NS_PER_S, global_ns=milliseconds * 1_000_000, limit_ns=0)
    return PodAndMeasure(each.pod, replace(each.measure, stall=stall))


def record(path: Path, rounds: Iterable[Played], released_s: float | None = None) -> Path:
    """Write rounds into a new recording, as `koordebpf record` does; `released_s`: so long each release took."""
    store = FileStore(path, Run("0123abcd", "node-1"), 64 * MIB)
    encoder = RoundEncoder()
    for each in rounds:
        wall_ns = WALL_NS + each.view.now_ns - NOW_NS
        events = []
        for uid in each.evicted if released_s is not None else ():
            entry = {"uid": uid, "since_ns": 0, "credit_bytes": 1}
            data = {"entry": entry, "now_ns": int((released_s or 0) * NS_PER_S)}
            events.append(RecordedEvent("MemoryReleased", wall_ns / NS_PER_S, data))
        store.add(encoder.encode(each.tick, each.decision, wall_ns), b"", events)
    store.close()
    return path
