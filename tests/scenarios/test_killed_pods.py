"""A pod that was killed for CPU and whose object stays in the list: it is killed once, and counts as evicted."""

from __future__ import annotations

from msgspec.structs import replace

from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.policy.decide import decide
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.memory import EvictionSent, NodeMeasured, OutcomeArrived, after
from koordebpf.policy.plan import Candidate, FeaturePlan
from koordebpf.state.build import remembering, view_of_frame, with_memory
from koordebpf.state.cpu.measured import CpuWindow
from koordebpf.state.decision_memory import DecisionMemory
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.support.values.builders import NOW_NS, frame, in_flight, names, plan_of, pod, supposed, why_not
from tests.support.values.cpu_nodes import node

BATCH, ENABLED = "kubernetes.io/batch-cpu", {"koordinator.sh/eviction-enabled": "true"}
SETTINGS = EvictSettings()
COOL_S = SETTINGS.cpu_cool_time_ns // NS_PER_S
STARVING = {
    "cpuEvictBESatisfactionLowerPercent": 60,
    "cpuEvictBESatisfactionUpperPercent": 80,
    "cpuEvictTimeWindowSeconds": 60,
}
ASKS = {"low": 5000, "mid": 3000, "high": 2000}


class Killer:
    """An agent that evicts by executor `cgroup`; the kubelet is slow, so that every pod's object stays.

    Its pods ask for 10 CPUs and may have `limit` of them, 5, so that requests of 3 CPUs are too many.
    """

    def __init__(self) -> None:
        self.memory = DecisionMemory()
        self.running = set(ASKS)  # pods with processes
        self.killed: list[str] = []
        self.populated: set[str] = set()  # of the killed, those with processes again
        self.at_s = 0
        self.limit = 5

    def view(self) -> NodeView:
        pods = [
            pod(name, priority=5000 + 100 * at, requests={BATCH: str(asks)}, anon=50 if name in self.running else 0)
            for at, (name, asks) in enumerate(ASKS.items())
        ]
        used = {f"uid-spark-{name}": asks // 2 if name in self.running else 0 for name, asks in ASKS.items()}
        window = CpuWindow(60 * NS_PER_S, 60 * NS_PER_S, None, 5000, 10_000, self.limit * 1000)
        return node(
            cpus=16, node_used=5000, be_used=5000, be_pods_used=used, be_now=range(self.limit), window=window,
            pods=pods, strategy=STARVING, gates={"BECPUEvict": True}, executor="cgroup",
            now_ns=NOW_NS + self.at_s * NS_PER_S,
        )  # fmt: skip

    def round(self) -> FeaturePlan:
        """Decide once the pause after the last eviction is over, and kill the victims."""
        view = self.view()
        self.memory = after(self.memory, self.measured(view))
        view = with_memory(view, self.memory)
        feature = next(each for each in decide(view, SETTINGS).features if each.verdict.feature == "BECPUEvict")
        for victim in feature.victims:
            self._kill(victim.candidate, view.now_ns)
        self.at_s += COOL_S
        return feature

    def measured(self, view: NodeView) -> NodeMeasured:
        populated = frozenset(f"uid-spark-{name}" for name in self.populated)
        return NodeMeasured(view, SETTINGS.pending_max_ns, keeps_released=False, populated=populated)

    def restart(self, name: str) -> None:
        """Start the containers of a killed pod again, as the kubelet does."""
        self.running.add(name)
        self.populated.add(name)

    def _kill(self, candidate: Candidate, now_ns: int) -> None:
        uid, name = candidate.uid, candidate.name
        self.killed.append(name)
        tasks = 3 if name in self.running else 0
        outcome = Outcome(
            uid, "spark", name, "cgroup", Result.DONE, f"killed {tasks} processes", now_ns, now_ns, killed_tasks=tasks
        )
        for event in (
            EvictionSent(candidate, now_ns, 0, for_use=False, for_cpu=True),
            OutcomeArrived(outcome, now_ns + NS_PER_MS),
        ):
            self.memory = after(self.memory, event)
        self.running.discard(name)
        self.populated.discard(name)


def test_it_is_killed_once_and_no_other_pod_is_evicted_for_its_request() -> None:
    agent = Killer()
    # GIVEN a round that kills one pod WHEN its object and its request stay for ten more rounds
    assert names(agent.round()) == ["low"]
    later = [agent.round() for _ in range(10)]
    # THEN none of them kills it again, or another one in its place
    assert agent.killed == ["low"]
    assert [each.balance.pending for each in later] == [5000] * 10
    assert later[-1].reason == "5 CPUs is already coming back from spark/low"


def test_a_pod_whose_containers_were_started_again_may_be_a_victim_again() -> None:
    agent = Killer()
    agent.round()
    assert names(agent.round()) == []
    # WHEN the kubelet starts its containers again
    agent.restart("low")
    # THEN it is killed once more, and once only
    assert names(agent.round()) == ["low"]
    assert names(agent.round()) == []
    assert agent.killed == ["low", "low"]


def test_where_its_request_is_not_enough_others_are_evicted_and_it_is_named() -> None:
    agent = Killer()
    agent.round()
    # WHEN best-effort pods may have 1 CPU of the 10 that they ask for: 7 are too many, 5 of them the killed pod's
    agent.limit = 1
    feature = agent.round()
    assert names(feature) == ["mid"]
    assert why_not(feature) == {"low": "killed"}
    assert (feature.balance.need, feature.balance.pending, feature.balance.missing) == (7000, 5000, 0)


def test_one_without_a_process_when_it_is_killed_is_killed_once() -> None:
    # GIVEN an agent that was restarted, which knows nothing of the kill by the one before
    agent = Killer()
    agent.running.discard("low")
    for _ in range(5):
        agent.round()
    assert agent.killed == ["low"]


def test_its_cpu_use_of_the_last_second_counts_as_coming_back() -> None:
    # GIVEN usage that was sampled over a second in which the hog still ran
    pods = [pod("hog", labels=ENABLED), pod("calm", priority=5500, labels=ENABLED)]
    view = node(
        cpus=10, pods=pods, be_pods_used={"uid-spark-hog": 5000, "uid-spark-calm": 3500}, node_used=8500,
        strategy={"cpuEvictThresholdPercent": 80, "evictEnabledPriorityThreshold": 5999}, gates={"CPUEvict": True},
        window=CpuWindow(60 * NS_PER_S, 60 * NS_PER_S, 8500), executor="cgroup",
    )  # fmt: skip
    assert names(decide(view).features[-1]) == ["hog"]
    killed = decide(replace(view, killed=frozenset({"uid-spark-hog"}))).features[-1]
    assert (names(killed), killed.reason) == ([], "5 CPUs is already coming back from spark/hog")


def test_what_it_asks_for_does_not_count_as_asked_for_too_much() -> None:
    pods = [pod("dead", requests={BATCH: "3000"}, labels=ENABLED), pod("a", requests={BATCH: "1900"}, labels=ENABLED)]
    view = node(cpus=10, pods=pods, allocatable={BATCH: "2000"}, gates={"CPUAllocatableEvict": True}, executor="cgroup")
    killed = decide(replace(view, killed=frozenset({"uid-spark-dead"}))).features[-1]
    assert (killed.balance.need, names(killed)) == (2900, [])


def test_a_pod_whose_cgroup_is_gone_counts_as_well() -> None:
    dead = pod("dead", requests={BATCH: "3000"}, labels=ENABLED, has_cgroup=False)
    view = node(
        cpus=10, pods=[dead], allocatable={BATCH: "2000"}, gates={"CPUAllocatableEvict": True}, executor="cgroup"
    )
    killed = decide(replace(view, killed=frozenset({"uid-spark-dead"}))).features[-1]
    assert (killed.balance.pending, names(killed)) == (3000, [])


def test_it_counts_longer_than_a_release_is_waited_for() -> None:
    # GIVEN memory of it that stays, as a tmpfs that outlives it
    low = pod("low", requests={BATCH: "5000"}, anon=50, labels=ENABLED)
    stays = replace(in_flight(low, credit=50, seconds_ago=500), failed_ns=NOW_NS - 400 * NS_PER_S)
    view = node(
        cpus=10, pods=[low], allocatable={BATCH: "2000"}, gates={"CPUAllocatableEvict": True}, executor="cgroup"
    )
    killed = decide(supposed(view, pending=(stays,), killed=frozenset({"uid-spark-low"}))).features[-1]
    assert (killed.balance.pending, names(killed)) == (5000, [])


def test_one_that_is_evicted_for_the_memory_that_it_still_holds_counts_once() -> None:
    pods = [
        pod("dead", priority=5000, requests={BATCH: "3000"}, anon=300, labels=ENABLED),
        pod("a", priority=5500, requests={BATCH: "3000"}, anon=10, labels=ENABLED),
    ]
    gates = {"BEMemoryEvict": True, "CPUAllocatableEvict": True}
    view = node(
        cpus=10, pods=pods, allocatable={BATCH: "1000"}, gates=gates, executor="cgroup",
        strategy={"memoryEvictThresholdPercent": 80},
    )  # fmt: skip
    view = replace(view, used_bytes=view.capacity_bytes * 9 // 10, killed=frozenset({"uid-spark-dead"}))
    memory, cpu = decide(view).features
    assert (names(memory), names(cpu)) == (["dead"], ["a"])
    assert (cpu.balance.pending, cpu.balance.shared, cpu.balance.credit) == (3000, 0, 3000)


def test_evictions_for_memory_do_not_ask_for_processes() -> None:
    recorded = frame([pod("low", anon=300), pod("high", priority=5500, anon=300)], used=900, executor="cgroup")
    assert plan_of(replace(recorded, killed=("uid-spark-low",))) == plan_of(recorded)


def test_a_frame_says_who_was_killed() -> None:
    agent = Killer()
    agent.round()
    recorded = remembering(frame([]), agent.memory)
    assert recorded.killed == ("uid-spark-low",)
    assert view_of_frame(decode_frame(encode_frame(recorded), "frame")).killed == {"uid-spark-low"}
    assert b"killed" not in encode_frame(frame([]))
