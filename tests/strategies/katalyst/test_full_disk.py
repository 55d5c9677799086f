"""A disk that fills: rounds of Katalyst's plugins for the image filesystem, each from a frame as JSON has it."""

from __future__ import annotations

import msgspec

from koordebpf.decision.decide_tick import TickFrame, TickSettings, decided_again
from koordebpf.decision.frames import decode_json
from koordebpf.decision.strategies import StrategySettings
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.store.frames import encode_decision
from koordebpf.strategies.katalyst.decide import GATE, KATALYST_EVICTION
from koordebpf.strategies.katalyst.inner import InnerSettings
from koordebpf.strategies.katalyst.plugins.memory import NUMA_MEMORY, NodeTimes, NumaMemoryState
from koordebpf.strategies.katalyst.plugins.rootfs import RootfsOveruseSettings, RootfsPressureSettings
from koordebpf.strategies.katalyst.rounds import ManagerState
from koordebpf.strategies.katalyst.settings import KatalystSettings
from koordebpf.strategies.katalyst.values import (
    EvictAsked,
    ImageFs,
    KatalystMeasured,
    PluginAnswer,
    RootfsMeasured,
    RootfsUse,
)
from koordebpf.units import GIB, NS_PER_S
from tests.strategies.katalyst.test_katalyst_frames import Node, kpod
from tests.support.values.builders import NOW_NS, frame

NAME, CAPACITY = KATALYST_EVICTION.name, 100 * GIB


def disk(free_gib: float, at_s: float, **used_gib: float) -> KatalystMeasured:
    """What is measured at a time: the disk, and the layers of pods in a pass of a second before it."""
    at_ns = NOW_NS + int(at_s * NS_PER_S)
    uses = {uid: RootfsUse(int(used * GIB), 100) for uid, used in used_gib.items()}
    image_fs = ImageFs("/var/lib/containerd", CAPACITY, int(free_gib * GIB), at_ns, 10**6, 10**6 - 100)
    return KatalystMeasured(image_fs=image_fs, rootfs=RootfsMeasured(at_ns - NS_PER_S, at_ns, uses))


def test_a_full_disk_evicts_the_pod_that_filled_it_and_then_waits_for_it_to_become_free() -> None:
    inner = InnerSettings(rootfsPressure=RootfsPressureSettings(is_on=True, min_free="10%", pod_min_used="5Gi"))
    settings = KatalystSettings(plugins=("rootfs-pressure-eviction-plugin",), inner=inner)
    node = Node([kpod("batch"), kpod("filler", "shared_cores"), kpod("small")], settings)
    node.measured = disk(40, 0, batch=10, filler=5, small=1)
    node.round()
    assert node.evicted == []
    # WHEN the disk fills: what was measured before the shortage chooses no pod, but the node is tainted
    node.measured = disk(5, 5, batch=10, filler=5, small=1)
    node.round(5)
    assert node.evicted == []
    assert [each.condition.name for each in node.made.reported] == ["SystemRootfs"]
    node.measured = disk(5, 10, batch=10, filler=40, small=1)
    decision = node.round(5)
    assert node.evicted == ["filler"]
    assert "met threshold in scope SystemRootfs" in decision.plan.sentence
    for at_s in range(15, 45, 5):
        node.measured = disk(5, at_s, batch=10, small=1)
        node.round(5)
    assert node.evicted == ["filler"]
    node.measured = disk(5, 45, batch=10, small=1)
    node.round(5)
    assert node.evicted == ["filler", "batch"]
    # AND the pod below the minimum stays, however long the disk is full
    for at_s in range(50, 150, 5):
        node.measured = disk(5, at_s, small=1)
        node.round(5)
    assert node.evicted == ["filler", "batch"]


def test_a_pod_above_its_threshold_is_evicted_softly_one_in_a_round() -> None:
    inner = InnerSettings(rootfsOveruse=RootfsOveruseSettings(is_on=True, shared="30Gi", namespaces=("kat",), count=5))
    settings = KatalystSettings(plugins=("rootfs-overuse-eviction-plugin",), inner=inner)
    node = Node([kpod(name, "shared_cores") for name in ("a", "b", "c")], settings)
    node.measured = disk(40, 0, a=31, b=45, c=29)
    node.round()
    assert node.evicted == ["a"]
    for _ in range(3):
        node.round(5)
    assert node.evicted == ["a", "b"]


def test_a_soft_request_keeps_the_grace_period_that_it_names() -> None:
    node = Node([kpod("a")])
    decision = node.answer(PluginAnswer("p", evict=(EvictAsked("a", "because", grace_s=3),)))
    assert decision.carried is not None
    (victim,) = decision.carried.screening.allowed
    assert victim.grace_s == 3


def test_a_state_that_no_round_has_changed_replays_to_the_same_bytes() -> None:
    name = NUMA_MEMORY.name
    state = ManagerState(
        inner={name: NumaMemoryState({"0": NodeTimes(3, "reclaimed", is_under=True)})}, synced_ns=NOW_NS
    )
    tick = TickFrame(
        frame=frame([kpod("a")], used=100, gates={GATE: True}),
        settings=TickSettings(strategies=StrategySettings(**{NAME: KatalystSettings()})),
        guards=GuardFacts(now_ns=NOW_NS, source="file", pods_synced_ns=NOW_NS, running_pods=1),
        states={NAME: state},
    )
    again = decode_json(msgspec.json.encode(tick), "tick", TickFrame)
    assert encode_decision(decided_again(again)) == encode_decision(decided_again(tick))
