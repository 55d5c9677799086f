"""Katalyst's eviction manager: rounds of plugins, as its documentation and its users tell them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickDecision, TickFrame, TickSettings, decided_again, encode_decision
from koordebpf.decision.frames import decode_json
from koordebpf.decision.strategies import StrategySettings
from koordebpf.slo.katalyst import QOS_LEVEL, SOFT_NOTICE
from koordebpf.state.decision_memory import Budget
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.state.view import PastEviction, PendingRelease
from koordebpf.strategies.katalyst.decide import GATE, KATALYST_EVICTION, KatalystDecision
from koordebpf.strategies.katalyst.inner import InnerSettings
from koordebpf.strategies.katalyst.plugins.memory import RssOveruseSettings, SystemMemorySettings
from koordebpf.strategies.katalyst.rounds import ManagerState, RemoteCall
from koordebpf.strategies.katalyst.settings import KatalystSettings
from koordebpf.strategies.katalyst.values import (
    Condition,
    EvictAsked,
    EvictionRecord,
    KatalystMeasured,
    NumaMemory,
    PluginAnswer,
    RemoteAnswers,
    SystemMemory,
    Threshold,
    TopPods,
)
from koordebpf.units import GIB, NS_PER_S, PAGE_BYTES
from tests.support.values.builders import NOW_NS, PodAndMeasure, frame, pod

NAME = KATALYST_EVICTION.name
# The plugins inside say nothing here unless a test asks them.
QUIET = KatalystSettings(plugins=())


def kpod(name: str, level: str = "reclaimed_cores", *, notice: bool = False, priority: int | None = 0) -> PodAndMeasure:
    """A pod of a QoS level of Katalyst's."""
    made = pod(name, anon=50, qos=None, kube_qos="Burstable", priority=priority, namespace="kat", uid=name, shmem=0)
    annotations = {QOS_LEVEL: level, **({SOFT_NOTICE: "True"} if notice else {})}
    return replace(made, pod=replace(made.pod, metadata=replace(made.pod.metadata, annotations=annotations)))


class Node:
    """An agent's rounds, each decided once more from its frame; what is evicted is gone in the next one."""

    def __init__(self, pods: Iterable[PodAndMeasure], settings: KatalystSettings = QUIET) -> None:
        self.pods = {each.pod.uid: each for each in pods}
        self.settings = TickSettings(strategies=StrategySettings(**{NAME: settings}))
        self.state = ManagerState()
        self.at_s = 0.0
        self.measured = KatalystMeasured()
        self.evicted: list[str] = []
        self.tick: TickFrame | None = None  # of the last round
        self.pending: tuple[PendingRelease, ...] = ()
        self.evictions: tuple[PastEviction, ...] = ()
        self.more: dict[str, Any] = {}  # of the frame
        self.called: Callable[[RemoteCall], object] = lambda _: None
        self.stays = False  # as with executor cgroup: an evicted pod's object stays in the list

    def round(self, after_s: float = 0) -> TickDecision:
        """Decide, and carry out what is decided."""
        self.at_s += after_s
        now_ns = NOW_NS + int(self.at_s * NS_PER_S)
        made = frame(self.pods.values(), used=100, gates={GATE: True}, pending=self.pending)
        self.evictions = Budget(self.evictions).recent(now_ns)
        made = replace(made, evictions=self.evictions, **self.more)
        measured = replace(made.measured, now_ns=now_ns, since_ns=now_ns - 1).with_part(NAME, self.measured)
        tick = TickFrame(
            frame=replace(made, measured=measured),
            settings=self.settings,
            guards=GuardFacts(now_ns=now_ns, source="file", pods_synced_ns=now_ns, running_pods=len(self.pods)),
            states={NAME: self.state},
        )
        self.tick = tick
        read = decode_json(msgspec.json.encode(tick), "tick", TickFrame)
        decision = decided_again(replace(read, states=tick.states))
        assert encode_decision(decided_again(read)) == encode_decision(decision)
        made_by = decision.strategies[NAME]
        assert isinstance(made_by, KatalystDecision)
        self.made, self.state = made_by, made_by.state
        for victim in decision.carried.screening.allowed if decision.carried else ():
            self.evicted.append(victim.candidate.uid)
            past = PastEviction(now_ns, victim.candidate.uid, victim.candidate.namespace)
            self.evictions = Budget(self.evictions).spend(past).evictions
            if not self.stays:
                del self.pods[victim.candidate.uid]
        self.decision = decision
        return decision

    def answer(self, *answers: PluginAnswer) -> TickDecision:
        """Let plugins outside answer a round: thresholds and pods first, top pods where they are asked for."""
        self.measured = KatalystMeasured(remote_plugins=tuple(each.plugin for each in answers))
        decision = self.round(5)
        while self.made.call is not None:
            call = self.made.call
            self.called(call)
            said = tuple(replace(each, top=None) if call.asks is None else _top(each, call.asks) for each in answers)
            remote = RemoteAnswers(call.number, said, NOW_NS)
            self.measured = replace(self.measured, remote=remote)
            decision = self.round(0.01)
        self.decision = decision
        return decision


def _top(answer: PluginAnswer, asks: Iterable[object]) -> PluginAnswer:
    asked = {ask.plugin for ask in asks}
    return PluginAnswer(answer.plugin, top=answer.top if answer.plugin in asked else None)


def forced(plugin: str, *uids: str, grace_s: int | None = None) -> PluginAnswer:
    return PluginAnswer(
        plugin, evict=tuple(EvictAsked(uid, "because", is_forced=True, grace_s=grace_s) for uid in uids)
    )


def soft(plugin: str, *uids: str) -> PluginAnswer:
    return PluginAnswer(plugin, evict=tuple(EvictAsked(uid, "because") for uid in uids))


def hard(plugin: str, *uids: str, grace_s: int = 0, condition: Condition | None = None) -> PluginAnswer:
    threshold = Threshold("hard", "disk", 10, 20, "greater_than", grace_s, condition)
    return PluginAnswer(plugin, threshold, top=TopPods(uids))


def test_of_soft_pods_the_reclaimed_one_is_evicted_and_not_the_most_protected() -> None:
    node = Node([kpod("online", "shared_cores", priority=9000), kpod("batch", priority=100)])
    node.answer(soft("p", "online", "batch"))
    assert node.evicted == ["batch"]


def test_of_all_soft_pods_one_is_evicted_in_a_round() -> None:
    node = Node([kpod(f"pod-{number}") for number in range(4)])
    for _ in range(2):
        node.answer(soft("p", *node.pods), soft("q", *node.pods))
    assert node.evicted == ["pod-0", "pod-1"]


def test_a_pod_that_wants_a_notice_is_notified_and_not_evicted_softly() -> None:
    node = Node([kpod("listens", notice=True)])
    node.answer(soft("p", "listens"))
    assert [(each.name, each.plugin) for each in node.made.notices] == [("listens", "p")]
    assert node.made.listening == (("kat", "listens"),)
    node.answer(forced("p", "listens"))
    assert node.evicted == ["listens"]


def test_ten_forced_pods_go_three_in_a_round_the_reclaimed_first() -> None:
    shared = [kpod(f"shared-{number}", "shared_cores") for number in range(5)]
    node = Node([*shared, *(kpod(f"batch-{number}") for number in range(5))])
    counts = []
    while node.pods:
        node.answer(forced("p", *node.pods))
        counts.append(len(node.evicted))
    assert counts == [3, 6, 9, 10]
    assert node.evicted == [f"batch-{number}" for number in range(5)] + [f"shared-{number}" for number in range(5)]


def test_between_two_rounds_no_more_than_the_burst_is_evicted() -> None:
    node = Node([kpod(f"batch-{number}") for number in range(6)])
    node.answer(forced("p", *node.pods))
    for _ in range(3):
        node.round(1)
    assert len(node.evicted) == 3


def test_a_pod_that_is_not_asked_for_again_is_withdrawn() -> None:
    node = Node([kpod("batch"), kpod("other")], replace(QUIET, burst=1))
    node.answer(forced("p", "batch", "other"))
    node.answer(PluginAnswer("p"))
    node.round(1)
    assert node.evicted == ["batch"]


def test_a_threshold_has_to_last_for_its_grace_period() -> None:
    node = Node([kpod("batch")])
    node.answer(hard("p", "batch", grace_s=12))
    node.answer(hard("p", "batch", grace_s=12))
    assert node.evicted == []
    # a round without it starts the clock again, a failed call does not
    node.answer(PluginAnswer("p"))
    node.answer(hard("p", "batch", grace_s=12))
    node.answer(PluginAnswer("p", problem="no answer in time"))
    node.answer(hard("p", "batch", grace_s=12))
    assert node.evicted == []
    node.answer(hard("p", "batch", grace_s=12))
    assert node.evicted == ["batch"]


def test_a_condition_stays_for_the_transition_period() -> None:
    node = Node([kpod("batch")], replace(QUIET, transition_ns=60 * NS_PER_S))
    node.answer(hard("p", condition=Condition("Disk", "node", ("NoSchedule",))))
    assert [each.condition.name for each in node.made.reported] == ["Disk"]
    node.answer(PluginAnswer("p"))
    assert node.made.reported
    node.round(55)
    assert not node.made.reported


def test_victims_of_a_dry_run_plugin_are_counted_and_live() -> None:
    node = Node([kpod("batch")], replace(QUIET, dry_run=("p",)))
    node.answer(forced("p", "batch"))
    assert node.evicted == []
    assert node.made.requests is not None
    assert [each.uid for each in node.made.requests.dry_run] == ["batch"]


def test_pods_that_are_no_candidates_are_refused() -> None:
    critical = kpod("critical", priority=2_000_001_000)
    node = Node([kpod("batch"), critical, kpod("system", "system_cores")])
    node.answer(forced("p", "critical", "elsewhere", "system"))
    assert node.evicted == []
    assert node.made.requests is not None
    assert {each.uid: each.code for each in node.made.requests.refused} == {
        "critical": "no_candidate",
        "elsewhere": "no_candidate",
        "system": "system_cores",
    }


def test_a_negative_grace_period_refuses_the_eviction() -> None:
    node = Node([kpod("batch")])
    node.answer(forced("p", "batch", grace_s=-1))
    assert node.evicted == []
    node.answer(forced("p", "batch", grace_s=0))
    assert node.evicted == ["batch"]


def test_a_plugin_outside_that_never_answers_holds_no_round_up() -> None:
    settings = KatalystSettings(
        plugins=("rss-overuse-eviction-plugin",),
        inner=InnerSettings(rssOveruse=RssOveruseSettings(is_on=True)),
    )
    node = Node([_requesting(kpod("batch"), "40Mi")], settings)
    node.measured = KatalystMeasured(remote_plugins=("hangs",))
    node.round()
    assert node.made.call is not None
    assert node.evicted == ["batch"]
    # AND no round is asked for that the past is due for
    node.round(2)
    assert node.made.wake_at_ns == NOW_NS + 3 * NS_PER_S
    node.round(2)
    assert node.made.state.remote.began_ns is None


def test_memory_that_is_short_again_waits_for_no_round_either() -> None:
    settings = KatalystSettings(
        inner=InnerSettings(systemMemory=SystemMemorySettings(free_minimum_bytes=GIB, cool_down_ns=0))
    )
    node = Node([kpod("a"), kpod("b")], settings)
    for at, (free, gone) in enumerate(((2, 0), (0, 1), (2, 1), (0, 2))):
        node.measured = system(free=free * GIB)
        node.round(0.2)
        assert len(node.evicted) == gone, at


def test_a_numa_node_that_becomes_short_waits_for_no_round() -> None:
    node = Node([kpod("batch")], KatalystSettings())

    def holding(free: int) -> KatalystMeasured:
        zone = NumaMemory(0, 64 * GIB, free * GIB // PAGE_BYTES, 10, 20, 0, 0, {"batch": GIB})
        return KatalystMeasured(numa=(zone, replace(zone, node=1, free_pages=20 * GIB // PAGE_BYTES)))

    node.measured = holding(20)
    node.round()
    node.measured = holding(20)
    node.round(0.5)
    node.measured = holding(0)
    node.round(0.5)
    assert node.evicted == ["batch"]


def test_memory_below_the_watermark_evicts_at_once_and_then_cools_down() -> None:
    settings = KatalystSettings(inner=InnerSettings(systemMemory=SystemMemorySettings(free_minimum_bytes=GIB)))
    node = Node([kpod("batch"), kpod("online", "shared_cores"), kpod("other")], settings)
    node.measured = system(free=2 * GIB)
    node.round()
    node.measured = system(free=GIB // 2)
    decision = node.round(0.1)
    assert node.evicted == ["batch"]
    assert decision.plan.sentence.startswith("evicting kat/batch")
    assert [each.condition.name for each in node.made.reported] == ["MemoryPressure"]
    for _ in range(6):
        node.round(5)
    assert node.evicted == ["batch"]
    node.round(6)
    assert node.evicted == ["batch", "other"]


def test_page_cache_evicts_no_pod() -> None:
    settings = KatalystSettings(inner=InnerSettings(systemMemory=SystemMemorySettings(free_minimum_bytes=GIB)))
    node = Node([kpod("batch")], settings)
    node.measured = system(free=GIB // 2, available=8 * GIB)
    for _ in range(20):
        node.round(5)
    assert node.evicted == []


def system(*, free: int, available: int | None = None) -> KatalystMeasured:
    return KatalystMeasured(SystemMemory(16 * GIB, free, free if available is None else available, 10))


def _requesting(made: PodAndMeasure, memory: str) -> PodAndMeasure:
    requests: Mapping[str, str] = {"memory": memory}
    containers = pod("x", requests=requests).pod.spec.containers
    return replace(made, pod=replace(made.pod, spec=replace(made.pod.spec, containers=containers)))


def test_a_longer_grace_period_of_one_pod_is_no_other_pods() -> None:
    threshold = Threshold("hard", "disk", 10, 20, "greater_than")
    node = Node([kpod("a"), kpod("b")])
    decision = node.answer(
        forced("p", "a", grace_s=60), PluginAnswer("q", threshold, top=TopPods(("a", "b"), grace_s=10))
    )
    victims = {victim.candidate.uid: victim for victim in decision.plan.victims}
    assert {uid: victim.grace_s for uid, victim in victims.items()} == {"a": 60, "b": 10}
    assert victims["a"].message == (
        "plugin q met threshold in scope disk, target 10, observed 20; plugin p asks for it: because;"
        " forced, grace period 60 s"
    )


def test_a_pod_whose_object_stays_is_sent_once_a_round() -> None:
    node = Node([kpod("batch"), kpod("other"), kpod("third")])
    node.stays = True
    node.answer(forced("p", "batch", "other"), soft("q", "third"))
    for _ in range(40):
        node.round(0.1)
    assert sorted(node.evicted) == ["batch", "other", "third"]


def test_a_queue_that_stands_for_minutes_is_sent_once() -> None:
    node = Node([kpod("batch"), kpod("other"), kpod("third")], replace(QUIET, sync_ns=600 * NS_PER_S))
    node.stays = True
    node.answer(forced("p", "batch", "other"), soft("q", "third"))
    for _ in range(50):
        node.round(10)
    assert sorted(node.evicted) == ["batch", "other", "third"]


def test_an_eviction_that_was_refused_is_sent_again() -> None:
    node = Node([kpod("batch")], replace(QUIET, sync_ns=600 * NS_PER_S))
    node.stays = True
    node.answer(forced("p", "batch"))
    node.evictions = ()  # the API server refused it: the budget has it back
    node.round(10)
    assert node.evicted == ["batch", "batch"]


def test_plugins_that_choose_pods_get_their_records_unless_that_is_off() -> None:
    for is_on in (True, False):
        node = Node([kpod("batch")], replace(QUIET, records=is_on))
        node.more = {"podDisruptionBudgets": ()}
        asked = []
        node.called = lambda call, asked=asked: asked.extend(each.records for each in call.asks or ())
        node.answer(hard("p", "batch"))
        assert asked == ([(EvictionRecord("batch"),)] if is_on else [()])


def test_between_rounds_a_frame_that_was_read_gives_the_same_decision() -> None:
    inner = InnerSettings(systemMemory=SystemMemorySettings(is_on=False))
    node = Node([kpod("batch")], KatalystSettings(inner=inner))
    short = NumaMemory(0, 64 * GIB, GIB // PAGE_BYTES, 100, 200, 0, 0, {"batch": GIB})
    node.measured = KatalystMeasured(numa=(short,))
    node.round(5)
    assert node.state.inner
    node.measured = KatalystMeasured()
    node.round(0.1)
    assert node.state.inner


INSIDE = KatalystSettings(
    plugins=("rss-overuse-eviction-plugin",),
    inner=InnerSettings(rssOveruse=RssOveruseSettings(is_on=True)),
)


def test_a_pod_whose_level_cannot_be_read_may_be_evicted_after_the_reclaimed_ones() -> None:
    node = Node(
        [kpod("unreadable", "best_cores"), kpod("batch"), kpod("system", "system_cores")], replace(QUIET, burst=1)
    )
    pods = ("unreadable", "batch", "system")
    node.answer(forced("p", *pods))
    node.answer(forced("p", *pods))
    node.answer(forced("p", *pods))
    assert node.evicted == ["batch", "unreadable"]


def test_a_forced_pod_makes_up_for_no_soft_one() -> None:
    node = Node([kpod("a"), kpod("b"), kpod("c")])
    node.answer(forced("f", "a"), soft("s", "c"))
    assert sorted(node.evicted) == ["a", "c"]


def test_of_soft_pods_inside_and_outside_one_is_evicted_in_a_round() -> None:
    node = Node([_requesting(kpod("inside"), "40Mi"), kpod("outside")], INSIDE)
    node.answer(soft("s", "outside"))
    assert node.evicted == ["inside"]
    node.answer(soft("s", "outside"))
    assert node.evicted == ["inside", "outside"]


def test_a_round_that_pressure_begins_keeps_what_plugins_outside_asked_for() -> None:
    inner = InnerSettings(systemMemory=SystemMemorySettings(free_minimum_bytes=GIB, reclaimed_grace_seconds=None))
    node = Node([kpod("a"), kpod("b"), kpod("c")], KatalystSettings(burst=1, inner=inner))
    node.answer(forced("f", "b", "c"))
    assert node.evicted == ["b"]
    # It chooses a, and the plugin outside still wants c: one of them has the place of the round that begins.
    node.measured = replace(system(free=0), remote_plugins=("f",))
    node.round(1)
    assert node.evicted == ["b", "a"]
    assert set(node.state.queue.outside.forced) == {"b", "c"}
    # AND in the next one its answers are awaited: what it does not ask for again is withdrawn
    node.measured = replace(system(free=2 * GIB), remote_plugins=("f",))
    node.round(5)
    assert node.state.queue.outside.forced == {}
    assert node.evicted == ["b", "a"]
