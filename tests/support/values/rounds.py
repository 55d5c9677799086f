"""Rounds of an agent, one each second, for what records them."""

from __future__ import annotations

import functools
import random
from typing import Any

from msgspec.structs import replace

from koordebpf.collect.node_watch import SignalState
from koordebpf.decision.decide_tick import TickDecision, TickFrame, TickSettings, decided_again
from koordebpf.kernel.signals import SignalQuality
from koordebpf.state.build import view_of_frame
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.state.pods.facts import facts_of_pods
from koordebpf.store.recorder.rounds import EncodedRound, RoundEncoder
from koordebpf.store.sink import RoundEnded
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import NOW_NS, frame, ls_pod, pod

_QUALITY = SignalQuality("co-re", "timed", "traced", "one pass", "backend co-re: each stall is timed")
WALL_NS = 1_800_000_000 * NS_PER_S


@functools.cache
def _frame(pods: int) -> Any:
    each = [pod(f"job-{number}", anon=1 + 200 * (number == 0)) for number in range(pods)]
    return frame([*each, ls_pod("web", anon=100)], used=500)


def tick_at(second: float, *, used_mib: int = 500, pods: int = 4, seed: int | None = None) -> TickFrame:
    """Return the round of a second. The node has 1000 MiB, and 800 are short; the pods' objects are the same ones."""
    now_ns = NOW_NS + int(second * NS_PER_S)
    made = _frame(pods)
    node = replace(made.measured.node, used_bytes=used_mib * MIB)
    measures = made.measured.pods
    if seed is not None:  # as busy as a node can be: every number is another one
        chance = random.Random(seed)
        measures = tuple(
            replace(
                each,
                growth_bytes_per_s=chance.random() * MIB,
                memory=replace(each.memory, usage_bytes=chance.randrange(1 << 40)),
            )
            for each in measures
        )
    measured = replace(made.measured, now_ns=now_ns, since_ns=now_ns - 1_000_000, node=node, pods=measures)
    return TickFrame(
        frame=replace(made, measured=measured),
        settings=TickSettings(),
        guards=GuardFacts(now_ns=now_ns, source="file", pods_synced_ns=now_ns),
    )


def round_at(second: float, **asked: Any) -> tuple[TickFrame, TickDecision]:
    """Return the same with its decision."""
    tick = tick_at(second, **asked)
    return tick, decided_again(tick)


def wall_ns(second: float) -> int:
    """Return the wall clock of a second."""
    return WALL_NS + int(second * NS_PER_S)


def encoded(second: float, encoder: RoundEncoder | None = None, **asked: Any) -> EncodedRound:
    """Return the same, ready for a shard."""
    tick, decision = round_at(second, **asked)
    return (encoder or RoundEncoder()).encode(tick, decision, wall_ns(second))


def round_ended(second: float, **asked: Any) -> RoundEnded:
    """Return the event that an agent publishes."""
    tick, decision = round_at(second, **asked)
    view = view_of_frame(tick.frame, facts=facts_of_pods(tick.frame.pods))
    return RoundEnded(tick, view, decision, SignalState(_QUALITY))
