"""A best-effort pod of a DaemonSet, which comes back on the same node at once: the plan says so, and evicts it once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.policy.decide import decide
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.memory import EvictionSent, NodeMeasured, OutcomeArrived, after
from koordebpf.policy.plan import FeaturePlan
from koordebpf.state.build import remembering, view_of_frame
from koordebpf.state.decision_memory import DecisionMemory
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import Frame
from koordebpf.units import NS_PER_S
from tests.support.values.builders import NOW_NS, frame, names, plan_of, pod, why_not

SETTINGS = EvictSettings()
COMES_BACK = "its DaemonSet makes it again on this node"
ABOVE, BELOW = 850, 770  # MiB of 1,000: the threshold is at 80 %, the lower mark at 78 %


class Node:
    """An agent whose DaemonSet `logs` has a pod again with the next measurement, and a Job that never comes back."""

    def __init__(self, settings: EvictSettings = SETTINGS) -> None:
        self.memory = DecisionMemory()
        self.settings = settings
        self.at_s = 0
        self.number = 1  # of the DaemonSet's pod
        self.logs_mib = 90
        self.jobs = ["job"]

    def frame(self, used: int) -> Frame:
        pods = [
            pod(f"logs-{self.number}", anon=self.logs_mib, priority=5000, owner="DaemonSet/logs"),
            *(pod(name, anon=80, priority=5500, owner=f"Job/{name}") for name in self.jobs),
        ]
        made = frame(pods, used=used)
        return replace(made, measured=replace(made.measured, now_ns=NOW_NS + self.at_s * NS_PER_S))

    def round(self, used: int, *, result: Result = Result.DONE) -> FeaturePlan:
        """Decide, evict the victims, and have the DaemonSet's pod made again; ten seconds go by."""
        view = view_of_frame(self.frame(used))
        self.memory = after(self.memory, NodeMeasured(view, self.settings.pending_max_ns, keeps_released=True))
        recorded = remembering(self.frame(used), self.memory)
        # The same frame gives the same decision, also after it was written and read.
        decided = plan_of(recorded, self.settings)
        assert decide(view_of_frame(decode_frame(encode_frame(recorded), "frame")), self.settings) == decided
        feature = decided.features[0]
        for victim in feature.victims:
            who = victim.candidate
            outcome = Outcome(who.uid, who.namespace, who.name, "api", result, "", view.now_ns, view.now_ns)
            for event in (
                EvictionSent(who, view.now_ns, view.known_used_bytes, for_use=True, for_cpu=False),
                OutcomeArrived(outcome, view.now_ns),
            ):
                self.memory = after(self.memory, event)
            if result is Result.DONE and who.name in self.jobs:
                self.jobs.remove(who.name)
            elif result is Result.DONE:
                self.number += 1
        self.at_s += 10
        return feature


def test_the_plan_says_that_it_comes_back() -> None:
    plan = plan_of(Node().frame(ABOVE))
    assert plan.sentence.startswith(f"evicting spark/logs-1 (priority 5000, 90.0 MiB; {COMES_BACK}): node at 85 %")
    jobs = plan_of(frame([pod("job", anon=90, owner="Job/job")], used=ABOVE))
    assert COMES_BACK not in jobs.sentence


def test_it_is_not_evicted_a_second_time_for_the_same_shortage() -> None:
    node = Node()
    assert names(node.round(ABOVE)) == ["logs-1"]
    # WHEN it is back with its memory, and the node is as short as before
    feature = node.round(ABOVE)
    # THEN the next in rank is evicted
    assert names(feature) == ["job"]
    assert why_not(feature)["logs-2"] == "comes_back"
    # AND then no pod does, for as long as the shortage lasts
    for _ in range(20):
        feature = node.round(ABOVE)
        assert names(feature) == []
        assert why_not(feature)["logs-2"] == "comes_back"
    sentence = plan_of(remembering(node.frame(ABOVE), node.memory)).sentence
    assert f"passed over spark/logs-2 ({COMES_BACK}, and one was evicted for this shortage already)" in sentence


def test_it_may_be_evicted_again_once_use_fell_below_the_lower_mark() -> None:
    node = Node()
    node.jobs = []
    assert names(node.round(ABOVE)) == ["logs-1"]
    assert names(node.round(BELOW)) == []
    # The eviction itself took the node below the mark: within a minute this is the same shortage.
    assert names(node.round(ABOVE)) == []
    for _ in range(4):
        node.round(BELOW)
    assert node.memory.recurring == ()
    assert names(node.round(ABOVE)) == ["logs-2"]


def test_one_that_grew_at_the_cost_of_others_is_evicted_again() -> None:
    node = Node()
    node.round(ABOVE)
    node.logs_mib = 91
    assert names(node.round(ABOVE)) == ["logs-2"]
    # What it gave then is the measure from now on.
    assert names(node.round(ABOVE)) == ["job"]


def test_one_whose_eviction_was_refused_may_be_asked_for_again() -> None:
    node = Node()
    node.jobs = []
    assert names(node.round(ABOVE, result=Result.REFUSED)) == ["logs-1"]
    assert node.memory.recurring == ()


@pytest.mark.parametrize("owner", ["Job/logs", "ReplicaSet/logs", None])
def test_pods_of_other_controllers_are_not_remembered(owner: str | None) -> None:
    made = frame([pod("a", anon=90, owner=owner)], used=ABOVE)
    (victim,) = plan_of(made).features[0].victims
    sent = EvictionSent(victim.candidate, NOW_NS, 0, for_use=True, for_cpu=False)
    assert after(DecisionMemory(), sent).recurring == ()
