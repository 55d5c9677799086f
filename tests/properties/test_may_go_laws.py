"""One pod more that cannot go never turns an eviction into none, unless what it releases already covers the need."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import assume, given
from hypothesis import strategies as some
from msgspec.structs import replace

from koordebpf.policy.decide import decide
from koordebpf.policy.plan import Plan
from koordebpf.slo.katalyst import QOS_LEVEL
from koordebpf.state.build import view_of_frame
from koordebpf.state.view import Frame, PendingRelease, PodView, RefusedEviction
from koordebpf.strategies.katalyst.inner import InnerSettings
from koordebpf.strategies.katalyst.plugins.memory import SystemMemorySettings
from koordebpf.strategies.katalyst.settings import KatalystSettings
from koordebpf.strategies.katalyst.values import KatalystMeasured, SystemMemory
from koordebpf.units import GIB, MIB, NS_PER_S
from tests.properties.test_cpu_features import nodes as cpu_nodes
from tests.properties.test_decision import frames
from tests.properties.test_memory_features import frames as memory_frames
from tests.strategies.katalyst.test_katalyst_frames import Node, kpod
from tests.support.values.builders import NOW_NS, PodAndMeasure, frame, pod

STUCK = "uid-stuck"
SIZES = some.integers(0, 400)  # MiB
Blocked = tuple[PodAndMeasure, dict[str, object]]  # a pod, and what a frame says of it
Makes = Callable[[int], Blocked]


def _pod(size: int, **odd: object) -> PodAndMeasure:
    made = pod("stuck", uid=STUCK, anon=size, **{"priority": 5000, **odd})
    return replace(
        made, pod=replace(made.pod, metadata=replace(made.pod.metadata, annotations={QOS_LEVEL: "reclaimed_cores"}))
    )


def _pending(size: int, since_s: int, **how: object) -> dict[str, object]:
    return {"pending": (PendingRelease(STUCK, NOW_NS - since_s * NS_PER_S, size * MIB, **how),)}


LEAVING: list[Makes] = [
    lambda size: (_pod(size, terminating=True), {}),
    lambda size: (_pod(size), _pending(size, 10)),
    lambda size: (_pod(size, terminating=True), _pending(size, 10)),
]
STAYING: list[Makes] = [
    lambda size: (_pod(size), _pending(size, 10, failed_ns=NOW_NS, problem="failed", why="it stays")),
    lambda size: (_pod(size), {"refused": (RefusedEviction(STUCK, None, "403 Forbidden"),)}),
    lambda size: (_pod(size), {"refused": (RefusedEviction(STUCK, NOW_NS + 1, "429 Too Many Requests"),)}),
    lambda size: (_pod(size), {"ownPodUid": STUCK}),
    lambda size: (_pod(size, namespace="kube-system"), {}),
    lambda size: (_pod(size, priority=2_000_001_000), {}),
    lambda size: (_pod(size, priority_class="system-node-critical"), {}),
    lambda size: (_pod(size, phase="Unknown"), {}),
    lambda size: (_pod(size, phase="Failed"), {}),
]
UNANSWERED: list[Makes] = [
    lambda size: (_pod(size), {"refused": (RefusedEviction(STUCK, NOW_NS + 1, "no answer", NOW_NS - 60 * NS_PER_S),)})
]
BLOCKED = some.builds(lambda make, size: make(size), some.sampled_from(LEAVING + STAYING + UNANSWERED), SIZES)


def with_pod(recorded: Frame, blocked: Blocked) -> Frame:
    made, said = blocked
    assert made.measure is not None
    measured = replace(recorded.measured, pods=(*recorded.measured.pods, made.measure))
    lists = {name: (*getattr(recorded, name), *value) for name, value in said.items() if isinstance(value, tuple)}
    return replace(recorded, pods=(*recorded.pods, made.pod), measured=measured, **{**said, **lists})


@given(frames(), BLOCKED)
def test_koordinators_features_evict_another_or_say_what_they_wait_for(recorded, blocked):
    recorded = replace(recorded, lastEvictNs=None)
    (before,) = decide(view_of_frame(recorded)).features
    assume(before.victims)
    (found,) = decide(view_of_frame(with_pod(recorded, blocked))).features
    if not found.victims:
        if "refused" in blocked[1]:
            assert blocked[0].pod.key in found.reason and "has not been answered yet" in found.reason
            assert blocked[0].measure.memory.held_bytes >= found.balance.need
        else:
            assert found.balance.pending >= found.balance.need
            assert found.reason.partition(" is already coming back from ")[2]


def whole(made: PodAndMeasure) -> PodView:
    (found,) = view_of_frame(frame([made])).pods
    return found


def assert_another_is_chosen_or_it_is_said(before: Plan, after: Plan, blocked: Blocked) -> None:
    assume(before.victims)
    if "refused" in blocked[1]:
        assert STUCK not in {victim.candidate.uid for victim in after.victims}
    if not after.victims:
        reasons = [each.reason for each in after.features]
        waits = "has not been answered yet" if "refused" in blocked[1] else " is already coming back from "
        assert any(waits in reason and blocked[0].pod.key in reason for reason in reasons), reasons


@given(memory_frames(), BLOCKED)
def test_features_of_memory_evict_another_or_say_what_they_wait_for(recorded, blocked):
    recorded = replace(recorded, lastEvictNs=None)
    after = decide(view_of_frame(with_pod(recorded, blocked)))
    assert_another_is_chosen_or_it_is_said(decide(view_of_frame(recorded)), after, blocked)


@given(cpu_nodes(), BLOCKED)
def test_features_of_cpu_evict_another_or_say_what_they_wait_for(view, blocked):
    made, said = blocked
    lists = {name: (*getattr(view.frame, name), *value) for name, value in said.items() if isinstance(value, tuple)}
    view = replace(view, frame=replace(view.frame, lastEvictNs=None, lastCpuEvictNs=None))
    with_blocked = replace(view, pods=(*view.pods, whole(made)), frame=replace(view.frame, **{**said, **lists}))
    assert_another_is_chosen_or_it_is_said(decide(view), decide(with_blocked), blocked)


@given(some.lists(SIZES, min_size=1, max_size=5), some.integers(1, 300), BLOCKED)
def test_katalysts_manager_evicts_another_or_says_what_it_waits_for(sizes, need, blocked):
    made, said = blocked
    pods = [*(_sized(f"p{at}", size) for at, size in enumerate(sizes)), made]
    settings = KatalystSettings(inner=InnerSettings(systemMemory=SystemMemorySettings(free_minimum_bytes=GIB)))
    node = Node(pods, settings)
    node.pending = said.pop("pending", ())
    node.more = said
    free = GIB - need * MIB
    node.measured = KatalystMeasured(SystemMemory(16 * GIB, free, free, 10))
    node.round()
    if not node.evicted:
        assert f"is already coming back from {made.pod.key}" in node.made.reason
        assert made.measure.memory.held_bytes >= need * MIB
    assert node.evicted != [STUCK]


def _sized(name: str, size: int) -> PodAndMeasure:
    made = kpod(name)
    return replace(made, measure=pod("x", anon=size, uid=name).measure)
