"""Laws of what an agent remembers of its evictions, whatever comes in whatever order."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.policy.decide import decide
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.memory import (
    Event,
    EvictionFailed,
    EvictionSent,
    NodeMeasured,
    OutcomeArrived,
    PodsListed,
    after,
)
from koordebpf.state.build import view_of_frame
from koordebpf.state.decision_memory import DecisionMemory
from koordebpf.state.outcome import Outcome, Result
from koordebpf.units import MIB, NS_PER_MS
from tests.support.values.builders import NOW_NS, frame, pod

SETTINGS = EvictSettings()
UIDS = ("uid-a", "uid-b", "uid-c")
SIZES = st.fixed_dictionaries({uid: st.sampled_from([0, 10, 200]) for uid in UIDS})
TIMES = st.integers(0, 200_000).map(lambda ms: NOW_NS + ms * NS_PER_MS)


def node(sizes: dict[str, int], used_mib: int = 850):
    return view_of_frame(
        frame([pod(uid, uid=uid, priority=5000, anon=mib) for uid, mib in sizes.items()], used=used_mib)
    )


CANDIDATES = {each.uid: each for each in decide(node(dict.fromkeys(UIDS, 200)), SETTINGS).features[0].candidates}

sent = st.builds(
    EvictionSent, st.sampled_from(list(CANDIDATES.values())), TIMES, st.just(850 * MIB), st.booleans(), st.booleans()
)
failed = st.builds(EvictionFailed, st.sampled_from(list(CANDIDATES.values())), TIMES)
outcomes = st.builds(
    Outcome, st.sampled_from(UIDS), st.just("be"), st.just("p"), st.sampled_from(["api", "cri", "cgroup"]),
    st.sampled_from(list(Result)), st.just("as it is"), TIMES, st.none() | TIMES, st.none(), st.none() | TIMES,
    st.none() | st.integers(0, 3),
)  # fmt: skip
answered = st.builds(OutcomeArrived, outcomes, TIMES)
listed = st.frozensets(st.sampled_from(UIDS)).map(PodsListed)
measured = st.builds(
    lambda sizes, at_ns, used, keeps, populated: NodeMeasured(
        msgspec.structs.replace(node(sizes, used), now_ns=at_ns), SETTINGS.pending_max_ns, keeps, populated
    ),
    SIZES, TIMES, st.sampled_from([300, 850]), st.booleans(), st.frozensets(st.sampled_from(UIDS)),
)  # fmt: skip
EVENTS = st.lists(st.one_of(sent, failed, answered, listed, measured), max_size=12)


def remembered(events: list[Event]) -> DecisionMemory:
    memory = DecisionMemory()
    for event in events:
        memory = after(memory, event)
    return memory


@given(EVENTS)
def test_each_pod_is_in_each_list_once(events: list[Event]) -> None:
    memory = remembered(events)
    for uids in (
        [each.uid for each in memory.pending],
        [each.uid for each in memory.refused],
        [each.uid for each in memory.effectiveness.awaited],
        [(each.uid, each.at_ns) for each in memory.budget.evictions],
    ):
        assert len(uids) == len(set(uids))
    assert memory.late <= {each.uid for each in memory.pending}


@given(EVENTS, st.one_of(sent, failed, answered, listed, measured))
def test_an_event_that_comes_twice_changes_nothing_more(events: list[Event], event: Event) -> None:
    once = after(remembered(events), event)
    assert after(once, event) == once


@given(EVENTS, answered, answered)
def test_answers_of_two_pods_may_come_in_either_order(
    events: list[Event], one: OutcomeArrived, other: OutcomeArrived
) -> None:
    if one.outcome.uid == other.outcome.uid:
        return
    memory = remembered(events)
    first, second = after(after(memory, one), other), after(after(memory, other), one)
    assert set(first.refused) == set(second.refused)
    assert msgspec.structs.replace(first, refused=()) == msgspec.structs.replace(second, refused=())


@given(EVENTS)
def test_a_restart_loses_nothing_that_it_reads_back(events: list[Event]) -> None:
    memory = remembered(events)
    assert msgspec.json.decode(msgspec.json.encode(memory), type=DecisionMemory) == memory


@given(EVENTS)
def test_the_budget_has_no_more_than_was_sent(events: list[Event]) -> None:
    was_sent = {(each.candidate.uid, each.decided_ns) for each in events if isinstance(each, EvictionSent)}
    assert {(each.uid, each.at_ns) for each in remembered(events).budget.evictions} <= was_sent
