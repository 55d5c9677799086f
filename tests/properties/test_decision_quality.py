"""What holds for every decision with ledger, owners, budgets, PodDisruptionBudgets and forecasts in it."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.kube.cache.objects import (
    ObjectMeta,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from koordebpf.policy.decide import decide
from koordebpf.policy.evict.selection import choose_victims
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.guards import Budget, GuardLimits, screen
from koordebpf.policy.ladder.climb import LadderState, next_rung
from koordebpf.policy.ladder_settings import LadderSettings, Rung
from koordebpf.policy.plan import Candidate, Holding, Plan
from koordebpf.slo.strategies.resource_threshold import allocatable_priority
from koordebpf.state.amount import MEMORY, USED, dimension
from koordebpf.state.build import view_of_frame
from koordebpf.state.measured import LedgerRow, LedgerView, NodeForecast, Party, TimeTo
from koordebpf.state.view import Frame, NodeView, PastEviction
from koordebpf.units import MIB, NS_PER_MS, NS_PER_S
from tests.support.values.builders import NOW_NS, frame, pod, read_back

GATES = ("BEMemoryEvict", "MemoryAllocatableEvict", "MemoryEvict")
BATCH = "kubernetes.io/batch-memory"
OWNERS = ("a", "b", None)
LABELS = ({"app": "x"}, {"app": "y"}, {})


@st.composite
def frames(draw: st.DrawFn, *, dense: bool = False) -> Frame:
    """Return a frame. A dense one is short of memory that many could free: only the order of eviction matters."""
    namespaces = ["spark"] if dense else ["spark", "etl", "kube-system"]
    is_short = dense or draw(st.sampled_from([True, True, True, False]))
    plain = [
        pod(
            f"plain-{index}",
            uid=f"plain-{index}",
            anon=draw(st.integers(10, 120)),
            priority=draw(st.sampled_from([5000, 5500])),
            owner=draw(st.sampled_from(OWNERS)),
            labels={"koordinator.sh/eviction-enabled": "true"} | draw(st.sampled_from(LABELS)),
            requests={BATCH: f"{draw(st.integers(50, 300))}Mi"},
        )
        for index in range(draw(st.integers(3, 5)) if is_short and not dense else 0)
    ]
    pods = plain + [
        pod(
            draw(st.sampled_from(["a", "b", "hog"])),
            namespace=draw(st.sampled_from(namespaces)),
            uid=f"uid-{index}",
            anon=draw(st.integers(10 if dense else 0, 150 if dense else 300)),
            priority=draw(
                st.none()
                | st.sampled_from([0, 5000, 5500] if dense else [0, 5000, 5000, 5500, 7500, 9500, 2_000_000_000])
            ),
            qos=draw(st.sampled_from(["BE", "BE", "BE", "LS"] if dense else ["BE", "BE", "BE", "LS", None])),
            kube_qos=draw(st.sampled_from(["BestEffort", "Burstable"])),
            owner=draw(st.sampled_from(OWNERS)),
            priority_class="" if dense else draw(st.sampled_from(["", "", "gold", "system-node-critical"])),
            ready=draw(st.booleans()),
            start_time=draw(st.sampled_from([None, "2026-11-21T18:00:00Z", "2026-11-21T18:01:20Z"])),
            growth=draw(st.none() | st.sampled_from([-1.0, 0.0, 1e6])),
            labels={"koordinator.sh/eviction-enabled": "true"} | draw(st.sampled_from(LABELS)),
            requests={BATCH: f"{draw(st.integers(0, 300))}Mi"},
        )
        for index in range(draw(st.integers(4 if dense else 0, 10)))
    ]
    strategy = {
        "enable": True,
        "memoryEvictThresholdPercent": 80,
        "memoryEvictLowerPercent": draw(st.integers(70 if dense else 0, 79)),
        "evictEnabledPriorityThreshold": draw(st.sampled_from([5500, 7999, 2_147_483_647])),
        "allocatableEvictPriorityThreshold": draw(st.sampled_from([5500, 7999])),
    }
    recorded = frame(
        pods,
        used=draw(st.integers(840, 900) if dense else st.integers(850 if is_short else 750, 1000)),
        threshold=strategy,
        gates={"BEMemoryEvict": True} if dense else {name: draw(st.booleans()) or is_short for name in GATES},
        allocatable={BATCH: f"{draw(st.integers(0, 900))}Mi"},
        executor="api" if dense else draw(st.sampled_from(["api", "cgroup"])),
    )
    node = replace(
        recorded.measured.node,
        growth_bytes_per_s=draw(st.none() | st.sampled_from([-1.0, 1e6])),
        forecast=draw(st.none() | st.just(NodeForecast(threshold=TimeTo(0, NS_PER_S, 2 * NS_PER_S)))),
    )
    return replace(
        recorded,
        measured=replace(
            recorded.measured, node=node, ledger=draw(ledgers(pods) if dense else st.none() | ledgers(pods))
        ),
        time="2026-11-21T18:01:30Z",
        ownPodUid="uid-gone" if dense else draw(st.sampled_from(["uid-0", "uid-gone"])),
        evictions=tuple(draw(st.lists(past_evictions(), max_size=4))),
        podDisruptionBudgets=draw(_some_pdbs if dense else st.none() | _some_pdbs),
    )


@st.composite
def ledgers(draw: st.DrawFn, pods: list) -> LedgerView:
    rows = []
    for _ in range(draw(st.integers(0, 4)) if pods else 0):
        victim, cause = draw(st.sampled_from(pods)).pod, draw(st.sampled_from(pods)).pod
        parties = [Party(each.uid, "pod", each.key, uid=each.uid) for each in (victim, cause)]
        rows.append(LedgerRow(*parties, draw(st.integers(0, 1000)) * NS_PER_MS, 0, 1))
    return LedgerView(60 * NS_PER_S, sum(row.ns for row in rows), 0, tuple(rows))


@st.composite
def past_evictions(draw: st.DrawFn) -> PastEviction:
    namespace = draw(st.sampled_from(["spark", "etl"]))
    owner = draw(st.sampled_from(OWNERS))
    workload = f"{namespace}/ReplicaSet/{owner}" if owner else None
    return PastEviction(NOW_NS - draw(st.sampled_from([1, 59, 61])) * NS_PER_S, "gone", namespace, workload)


@st.composite
def pdbs(draw: st.DrawFn) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        ObjectMeta(name=draw(st.sampled_from("xyz")), namespace=draw(st.sampled_from(["spark", "etl"]))),
        PodDisruptionBudgetSpec({"matchLabels": draw(st.sampled_from(LABELS))}),
        PodDisruptionBudgetStatus(0, draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(st.integers(0, 2))),
    )


_some_pdbs = st.lists(pdbs(), max_size=3, unique_by=lambda each: each.key).map(tuple)
evict_settings = st.builds(
    EvictSettings,
    prefer_aggressor=st.booleans(),
    across_priorities=st.booleans(),
    spread_owners=st.booleans(),
    act_ahead_ns=st.sampled_from([0, 5 * NS_PER_S]),
    min_age_ns=st.sampled_from([0, 60 * NS_PER_S]),
    protected_namespaces=st.sampled_from([frozenset(), frozenset({"etl"})]),
    protected_priority_classes=st.sampled_from([frozenset(), frozenset({"gold"})]),
    evictions_per_workload=st.none() | st.integers(0, 2),
    evictions_per_namespace=st.none() | st.integers(0, 3),
    obey_pdbs=st.booleans(),
    ladder=st.builds(LadderSettings, rungs=st.frozensets(st.sampled_from(Rung))),
)


def both(recorded: Frame, chosen: EvictSettings) -> tuple[NodeView, Plan]:
    view = view_of_frame(recorded)
    return view, decide(view, chosen)


@given(frames(), evict_settings)
def test_the_same_frame_gives_the_same_plan(recorded, chosen):
    _, plan = both(recorded, chosen)
    _, again = both(decode_frame(encode_frame(recorded), "frame"), chosen)
    assert plan == again
    assert read_back(plan) == plan


@given(frames(), evict_settings)
def test_no_pod_is_evicted_that_is_protected_or_above_the_configured_priority(recorded, chosen):
    view, plan = both(recorded, chosen)
    pods = {each.uid: each for each in view.pods}
    highest = {
        "MemoryAllocatableEvict": allocatable_priority(view.strategy),
        "MemoryEvict": view.strategy.evictEnabledPriorityThreshold,
    }
    for feature in plan.features:
        for victim in feature.victims:
            gone = pods[victim.candidate.uid]
            assert gone.terms.priority <= highest.get(feature.verdict.feature, 2_147_483_647)
            assert feature.verdict.feature != "BEMemoryEvict" or gone.koord_qos == "BE"
            assert (gone.priority or 0) < 2_000_000_000
            assert gone.terms.priority_class not in {"system-node-critical", *chosen.protected_priority_classes}
            assert gone.namespace not in {"kube-system", *chosen.protected_namespaces}
            assert gone.uid != recorded.ownPodUid
            if chosen.min_age_ns:
                assert gone.terms.started_s is None or view.wall_s - gone.terms.started_s >= 60


@given(frames(), evict_settings)
def test_never_more_than_the_budgets(recorded, chosen):
    _, plan = both(recorded, chosen)
    recent = [each for each in recorded.evictions if NOW_NS - each.at_ns < 60 * NS_PER_S]
    going = [victim.candidate for victim in plan.victims]
    if chosen.evictions_per_workload is not None:
        lost = Counter(each.workload for each in going if each.workload)
        before = Counter(each.workload for each in recent)
        assert all(count + before[key] <= chosen.evictions_per_workload for key, count in lost.items())
    if chosen.evictions_per_namespace is not None:
        lost = Counter(each.namespace for each in going)
        before = Counter(each.namespace for each in recent)
        assert all(count + before[key] <= chosen.evictions_per_namespace for key, count in lost.items())


@given(frames(), evict_settings, st.integers(0, 12), st.integers(1, 12), st.integers(1, 12))
def test_never_more_than_a_round_and_a_minute_allow(recorded, chosen, spent, minute, most):
    _, plan = both(recorded, chosen)
    budget = Budget(tuple(PastEviction(NOW_NS - n, f"u{n}", "x") for n in range(spent)))
    limits = GuardLimits(evictions_per_minute=minute, victims_per_round=most)
    screening = screen(plan.victims, (), budget, limits, now_ns=NOW_NS, own_pod_uid=recorded.ownPodUid)
    assert len(screening.allowed) <= min(most, max(minute - spent, 0))
    assert len(screening.allowed) + len(screening.held) == len(plan.victims)


@given(frames(dense=True), evict_settings)
def test_a_disruption_budget_is_overdrawn_only_where_nothing_else_is_left(recorded, chosen):
    _, plan = both(recorded, replace(chosen, obey_pdbs=True))
    for feature in plan.features:
        blocked = [each.candidate for each in feature.victims if each.candidate.disruption not in (None, "allowed")]
        going = {each.candidate.uid for each in feature.victims}
        held = {each.uid for each in feature.excluded}
        if blocked:
            # Every other pod that would free something is evicted too, or is protected by another budget.
            others = [each for each in feature.candidates if each.disruption in (None, "allowed")]
            assert all(each.uid in going | held or not _gives(each, feature) for each in others)


@given(frames(dense=True), evict_settings)
def test_no_victim_without_credit_and_none_that_could_be_spared(recorded, chosen):
    _, plan = both(recorded, chosen)
    for feature in plan.features:
        if feature.verdict.feature != "BEMemoryEvict" or not feature.victims:
            continue
        credits = [victim.candidate.of(MEMORY).released for victim in feature.victims]
        blocked = [victim for victim in feature.victims if victim.candidate.disruption not in (None, "allowed")]
        assert min(credits) > 0
        assert feature.balance.credit == sum(credits)
        open_need = feature.balance.need - feature.balance.pending - feature.balance.shared
        assert feature.balance.missing == max(open_need - sum(credits), 0)
        if not blocked:
            assert sum(credits) - min(credits) < open_need


@given(frames() | frames(dense=True), evict_settings, st.integers(0, 200))
def test_more_pressure_never_frees_less(recorded, chosen, more):
    used = recorded.measured.node.used_bytes
    recorded = replace(recorded, featureGates={"BEMemoryEvict": True})

    def freed(used_bytes: int) -> int:
        node = replace(recorded.measured.node, used_bytes=used_bytes)
        _, plan = both(replace(recorded, measured=replace(recorded.measured, node=node)), chosen)
        return plan.features[0].balance.credit

    assert freed(used + more * MIB) >= freed(used)


@settings(max_examples=50)
@given(frames(), evict_settings, st.randoms(use_true_random=False))
def test_the_order_of_the_list_changes_nothing(recorded, chosen, random):
    _, plan = both(recorded, chosen)
    pods, budgets = list(recorded.pods), list(recorded.podDisruptionBudgets or ())
    random.shuffle(pods)
    random.shuffle(budgets)
    shuffled = replace(recorded, pods=tuple(pods))
    if recorded.podDisruptionBudgets is not None:
        shuffled = replace(shuffled, podDisruptionBudgets=tuple(budgets))
    _, again = both(shuffled, chosen)
    assert again.victims == plan.victims
    assert [feature.candidates for feature in again.features] == [feature.candidates for feature in plan.features]


@given(frames(dense=True), evict_settings)
def test_no_preference_crosses_a_priority_unless_it_may(recorded, chosen):
    view, plan = both(recorded, chosen)
    pods = {each.uid: each for each in view.pods}
    for feature in plan.features:
        order = [pods[each.uid] for each in feature.candidates]
        assert [each.rank for each in feature.candidates] == list(range(1, len(order) + 1))
        if chosen.across_priorities and chosen.prefer_aggressor:
            continue
        if feature.verdict.feature == "BEMemoryEvict":
            keys = [(each.priority or 0,) for each in order]
        else:
            keys = [(each.terms.own_priority, each.terms.priority, each.terms.sub_priority) for each in order]
        assert keys == sorted(keys)
        # Nor a class: which class is at which place is as without any preference.
        plain = replace(chosen, prefer_aggressor=False, spread_owners=False)
        same = next(each for each in decide(view, plain).features if each.verdict.feature == feature.verdict.feature)
        if not feature.balance.shared and len(same.candidates) == len(order):
            classes = [pods[each.uid].koord_qos or pods[each.uid].kube_qos for each in same.candidates]
            assert [each.koord_qos or each.kube_qos for each in order] == classes


@given(st.lists(st.integers(0, 60), max_size=8), st.integers(1, 200))
def test_among_equals_as_few_go_as_can_cover_the_need(sizes, need):
    sizes = sorted(sizes, reverse=True)
    candidates = [
        Candidate(n, f"u{n}", "n", f"p{n}", 1, 0, (Holding(MEMORY, size, size),), size)
        for n, size in enumerate(sizes, 1)
    ]
    victims = choose_victims(candidates, {USED: need})
    enough = [
        len(some)
        for count in range(len(sizes) + 1)
        for some in itertools.combinations(sizes, count)
        if sum(some) >= need
    ]
    expected = min(enough) if enough else sum(size > 0 for size in sizes)
    assert len(victims) == expected


@given(frames(), evict_settings, st.lists(st.tuples(st.integers(700, 1000), st.integers(0, 40)), max_size=8))
def test_the_ladder_climbs_in_order_and_leaves_nothing_behind(recorded, chosen, moments):
    state, now_ns = LadderState(), NOW_NS
    order = list(Rung)
    for used, seconds in moments:
        now_ns += seconds * NS_PER_S
        view = view_of_frame(recorded)
        view = replace(view, now_ns=now_ns, used_bytes=used * MIB)
        before = state
        step = next_rung(view, decide(view, chosen), state, chosen.ladder)
        state = step.state
        if step.begin is not None:
            assert step.begin.is_on
            assert step.begin.actions
            reached = -1 if before.rung is None else order.index(before.rung)
            assert order.index(step.begin.rung) >= reached
        held = [each.plan.rung for each in state.in_force]
        assert set(held) <= {Rung.BRAKE, Rung.FREEZE}
        # What was in force still is, or is undone now.
        assert set(before.in_force) <= set(state.in_force) | set(step.undo)
    calm = replace(view_of_frame(recorded), used_bytes=0, pods=(), forecast=None)
    for seconds in (0, 31):
        now_ns += seconds * NS_PER_S
        calm = replace(calm, now_ns=now_ns)
        step = next_rung(calm, decide(calm, chosen), step.state if moments else state, chosen.ladder)
        assert set(state.in_force) <= set(step.state.in_force) | set(step.undo)
        state = step.state
    assert state.in_force == ()


def _gives(candidate: Candidate, feature) -> bool:
    memory, amounts = candidate.of(MEMORY), feature.verdict.amounts
    is_asked = memory.requested > 0 and dimension(memory.asked) in amounts
    return (USED in amounts and memory.released > 0) or is_asked
