"""A round of an agent is decided again from its frame, bit for bit, after it went through a file."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from koordebpf.decision.decide_tick import (
    TickDecision,
    TickFrame,
    TickSettings,
    decide_tick,
    decided_again,
    encode_decision,
    tick_view,
)
from koordebpf.policy.evict.pending import EvictedPods
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.guards import EmergencySettings, GuardLimits
from koordebpf.policy.ladder.escalation import LadderMemory
from koordebpf.policy.ladder_settings import LadderSettings, Rung
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.state.pods.facts import facts_of_pods
from koordebpf.state.view import Frame, PastEviction
from koordebpf.store.frames import RecordedTick, decode_tick
from koordebpf.strategies.cpu_suppress.values import SuppressMeasured
from koordebpf.units import NS_PER_S
from tests.properties.test_decision import frames
from tests.support.values.builders import NOW_NS
from tests.support.values.cpu_nodes import cpu_frame

_RUNGS = st.frozensets(st.sampled_from(list(Rung)))
_STRATEGY = ResourceThresholdStrategy(enable=True, memoryEvictThresholdPercent=70)
_AGES_S = st.sampled_from([0, 10, 100, 150, 700])


@st.composite
def ticks(draw: st.DrawFn) -> TickFrame:
    """Return a round; its pods may have been evicted before, its ladder be somewhere, its API server be lost."""
    frame: Frame = draw(frames() | st.builds(cpu_frame))
    rungs = draw(_RUNGS)
    uids = [pod.uid for pod in frame.pods]
    past = st.builds(PastEviction, st.just(NOW_NS - NS_PER_S), st.sampled_from([*uids, "gone"]), st.just("x"))
    if draw(st.booleans()):
        frame = replace(frame, measured=frame.measured.with_part("suppress", SuppressMeasured("a burst")))
    frame = replace(
        frame,
        evictions=tuple(draw(st.lists(past, max_size=4))),
        strategyInForce=draw(
            st.just(msgspec.UNSET)
            | st.none()
            | st.just(ResourceThresholdStrategy(True, memoryEvictThresholdPercent=70))
        ),
    )
    now_ns = frame.measured.now_ns
    synced_ns = draw(st.none() | _AGES_S.map(lambda age_s: now_ns - age_s * NS_PER_S))
    settings = TickSettings(
        eviction=EvictSettings(ladder=LadderSettings(rungs=rungs)),
        guards=GuardLimits(evictions_per_minute=draw(st.integers(0, 3)), victims_per_round=draw(st.integers(0, 3))),
        emergency=EmergencySettings(action=draw(st.sampled_from(["nothing", "kill-be"]))),
        kill_after_ns=draw(st.none() | st.just(NS_PER_S)),
    )
    tick = TickFrame(
        frame=frame,
        settings=settings,
        guards=GuardFacts(now_ns=now_ns, source="api", pods_synced_ns=synced_ns, lost_records=draw(st.integers(0, 1))),
        is_round_due=draw(st.booleans()),
        has_cpu=frame.measured.cpu is not None,
        states=draw(st.just({}) | st.just({"suppress": {"cpuset": "using"}})),
        ladder=LadderMemory() if rungs - {Rung.EVICT} else None,
        listed_cgroups=draw(
            st.none() | st.just({each.uid: each.cgroup_id for each in frame.measured.pods if each.cgroup_id})
        ),
    )
    return _later(tick, draw(st.integers(0, 3)))


# As an agent some rounds later that has carried out what was decided, and was answered that all was accepted.
def _later(tick: TickFrame, rounds: int) -> TickFrame:
    for _ in range(rounds):
        view = tick_view(tick)
        decision = decide_tick(tick, view)
        if decision.carried is None:
            return tick
        evicted: EvictedPods = tick.evicted
        for feature in decision.carried.plan.features:
            for victim in feature.victims:
                evicted = evicted.sent(feature.verdict.feature, victim, view, view.now_ns)
        accepted = tuple(replace(each, is_accepted=True) for each in evicted.pods)
        measured = replace(tick.frame.measured, now_ns=view.now_ns + 2 * NS_PER_S)
        tick = replace(
            tick,
            frame=replace(tick.frame, measured=measured),
            evicted=EvictedPods(accepted),
            ladder=tick.ladder and (decision.ladder or tick.ladder),
        )
    return tick


def _live(tick: TickFrame) -> TickDecision:
    facts = facts_of_pods(tick.frame.pods)  # decoded once, as an agent does
    return decide_tick(tick, tick_view(tick, facts), facts)


@pytest.mark.story
@given(tick=ticks())
def test_it_is_decided_alike_after_a_file(tick: TickFrame) -> None:
    decision = _live(tick)
    line = msgspec.json.encode(RecordedTick(tick, msgspec.Raw(encode_decision(decision))))
    recorded = decode_tick(line, "line")
    assert recorded.tick == tick
    assert recorded.is_same(decided_again(recorded.tick))


@given(tick=ticks())
def test_another_decision_is_not_taken_for_it(tick: TickFrame) -> None:
    decision = decided_again(tick)
    recorded = RecordedTick(tick, msgspec.Raw(encode_decision(decision)))
    assert not recorded.is_same(replace(decision, plan=replace(decision.plan, sentence="another one")))


@given(tick=ticks())
def test_what_is_carried_out_is_the_plan_or_held(tick: TickFrame) -> None:
    carried = decided_again(tick).carried
    if carried is None:
        return
    screened = [*carried.screening.allowed, *(victim for victim, _ in carried.screening.held)]
    assert sorted(each.candidate.uid for each in screened) == sorted(
        each.candidate.uid for each in carried.plan.victims
    )
    if carried.guards:
        assert carried.screening.allowed == ()
    assert len(carried.screening.allowed) <= tick.settings.guards.victims_per_round
    assert tick.is_round_due
