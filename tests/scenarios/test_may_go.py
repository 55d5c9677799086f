"""A pod that cannot go now keeps no other from going: the plugins of Katalyst's manager, inside and outside."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from koordebpf.state.cnr import Cnr, CnrZone
from koordebpf.state.pods.requests import RECLAIMED_CPU
from koordebpf.state.view import PendingRelease, RefusedEviction
from koordebpf.strategies.katalyst.inner import InnerSettings
from koordebpf.strategies.katalyst.plugins.memory import NumaMemorySettings, SystemMemorySettings
from koordebpf.strategies.katalyst.plugins.rootfs import RootfsOveruseSettings, RootfsPressureSettings
from koordebpf.strategies.katalyst.settings import KatalystSettings
from koordebpf.strategies.katalyst.values import (
    ImageFs,
    KatalystMeasured,
    NumaMemory,
    RemoteAnswers,
    RootfsMeasured,
    RootfsUse,
    SystemMemory,
)
from koordebpf.units import GIB, MIB, NS_PER_S, PAGE_BYTES
from tests.strategies.katalyst.test_katalyst_frames import QUIET, Node, forced, hard, kpod, soft
from tests.support.values.builders import NOW_NS, PodAndMeasure, pod

HELD = 50 * MIB  # of memory, and of the disk, by each pod
STUCK, FREE = "a-stuck", "b-free"  # the first would go first
INNER = InnerSettings(
    numaMemory=NumaMemorySettings(reclaimed_times=0, times=1000),
    systemMemory=SystemMemorySettings(free_minimum_bytes=GIB),
    rootfsPressure=RootfsPressureSettings(is_on=True, min_free="10Gi"),
    rootfsOveruse=RootfsOveruseSettings(is_on=True, levels=("reclaimed_cores",), reclaimed="20Gi"),
)
Kind = Callable[[Node], None]
Measure = Callable[[float, int], KatalystMeasured]  # so many pods' worth is missing, at this time


def of_machine(need: float, _: int) -> KatalystMeasured:
    free = GIB - int(need * HELD)
    return KatalystMeasured(SystemMemory(16 * GIB, free, free, 10))


def of_numa_node(need: float, _: int) -> KatalystMeasured:
    pages = (4 * GIB - int(need * HELD)) // PAGE_BYTES
    return KatalystMeasured(numa=(NumaMemory(0, GIB, pages, 10, 20, 0, 0, {STUCK: HELD, FREE: HELD}),))


def of_cnr(need: float, _: int) -> KatalystMeasured:
    return KatalystMeasured(cnr=Cnr({RECLAIMED_CPU: round((2 - need) * 1000 / 5)}))


def of_zone(need: float, _: int) -> KatalystMeasured:
    names = [f"zone/{FREE}/{FREE}", *(f"{namespace}/{STUCK}/{STUCK}" for namespace in ("kat", "kube-system"))]
    zone = CnrZone("0", {RECLAIMED_CPU: round((2 - need) * 1000 / 5)}, {name: {RECLAIMED_CPU: 1000} for name in names})
    return KatalystMeasured(cnr=Cnr(numa=(zone,)))


def of_disk(need: float, at_ns: int, used: int = HELD) -> KatalystMeasured:
    layers = RootfsMeasured(at_ns, at_ns, dict.fromkeys((STUCK, FREE), RootfsUse(used, 1)))
    return KatalystMeasured(image_fs=ImageFs("/", 100 * GIB, 10 * GIB - int(need * HELD), at_ns), rootfs=layers)


def of_layers(_: float, at_ns: int) -> KatalystMeasured:
    return of_disk(-1000, at_ns, 30 * GIB)


CHOOSERS: dict[str, Measure] = {
    "system-memory-pressure-eviction-plugin": of_machine,
    "numa-memory-pressure-eviction-plugin": of_numa_node,
    "reclaimed-resource-pressure-eviction-plugin": of_cnr,
    "reclaimed-numa-resource-pressure-eviction-plugin": of_zone,
    "rootfs-pressure-eviction-plugin": of_disk,
    "rootfs-overuse-eviction-plugin": of_layers,
}
WITH_AMOUNTS = {name: measure for name, measure in CHOOSERS.items() if measure is not of_layers}


def _changed(node: Node, *, namespace: str | None = None, terminating_s: int | None = None) -> None:
    made = node.pods[STUCK]
    metadata = made.pod.metadata
    if namespace is not None:
        metadata = replace(metadata, namespace=namespace)
    if terminating_s is not None:
        deleted = pod("x", terminating=True).pod.metadata.deletionTimestamp
        metadata = replace(metadata, deletionTimestamp=deleted, deletionGracePeriodSeconds=terminating_s)
    node.pods[STUCK] = replace(made, pod=replace(made.pod, metadata=metadata))


def is_deleted(node: Node) -> None:
    _changed(node, terminating_s=3600)


def was_evicted(node: Node) -> None:
    node.pending = (PendingRelease(STUCK, NOW_NS, HELD),)


def brought_nothing(node: Node) -> None:
    node.pending = (PendingRelease(STUCK, NOW_NS, HELD, failed_ns=NOW_NS, problem="failed", why="it stays"),)


def is_refused(node: Node) -> None:
    node.more["refused"] = (RefusedEviction(STUCK, NOW_NS + 3600 * NS_PER_S, "429 Too Many Requests"),)


def is_protected(node: Node) -> None:
    _changed(node, namespace="kube-system")


LEAVING = (is_deleted, was_evicted)
KINDS = (*LEAVING, brought_nothing, is_refused, is_protected)


def asking(name: str, namespace: str) -> PodAndMeasure:
    made = kpod(name)
    made = replace(made, pod=replace(made.pod, metadata=replace(made.pod.metadata, namespace=namespace)))
    containers = pod("x", requests={RECLAIMED_CPU: "1000"}).pod.spec.containers
    return replace(made, pod=replace(made.pod, spec=replace(made.pod.spec, containers=containers)))


def node_with(plugin: str) -> Node:
    return Node([asking(STUCK, "kat"), asking(FREE, "zone")], KatalystSettings(plugins=(plugin,), inner=INNER))


def play(node: Node, measure: Measure, need: float, seconds: float = 0) -> None:
    node.measured = measure(need, NOW_NS + int((node.at_s + seconds) * NS_PER_S))
    node.round(seconds)


@pytest.mark.parametrize("plugin", CHOOSERS)
def test_without_a_reason_to_stay_the_first_is_evicted_first(plugin: str) -> None:
    node = node_with(plugin)
    play(node, CHOOSERS[plugin], 1.5)
    assert node.evicted == [STUCK]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plugin", CHOOSERS)
def test_where_the_first_cannot_go_the_next_one_does_and_who_was_passed_over_is_said(plugin: str, kind: Kind) -> None:
    node = node_with(plugin)
    kind(node)
    play(node, CHOOSERS[plugin], 1.5)
    assert node.evicted == [FREE]
    assert f"{plugin} passes over {node.pods[STUCK].pod.key} (" in node.made.reason
    assert node.made.requests is not None
    assert [each.uid for each in node.made.requests.refused] == [STUCK]


@pytest.mark.parametrize("kind", LEAVING)
@pytest.mark.parametrize("plugin", WITH_AMOUNTS)
def test_what_comes_back_already_is_waited_for_and_that_is_said(plugin: str, kind: Kind) -> None:
    node = node_with(plugin)
    kind(node)
    play(node, CHOOSERS[plugin], 0.5)
    assert node.evicted == []
    assert f"{plugin} waits: " in node.made.reason
    assert f"already coming back from kat/{STUCK}" in node.made.reason
    # BUT not for ever
    node.pending = (PendingRelease(STUCK, NOW_NS, HELD),)
    _changed(node, terminating_s=10)
    play(node, CHOOSERS[plugin], 0.5, 121)
    assert node.evicted == [FREE]


@pytest.mark.parametrize("plugin", CHOOSERS)
def test_one_that_is_late_and_could_end_sooner_is_hurried(plugin: str) -> None:
    node = node_with(plugin)
    _changed(node, terminating_s=3600)
    node.pending = (PendingRelease(STUCK, NOW_NS, HELD),)
    node.at_s = 121
    play(node, CHOOSERS[plugin], 1.5)
    assert node.tick is not None
    assert node.evicted == [STUCK]
    (victim,) = node.decision.plan.victims
    assert victim.grace_s is not None
    assert victim.grace_s <= 30


@pytest.mark.parametrize("name", ["system-memory-pressure-eviction-plugin", "rootfs-pressure-eviction-plugin"])
def test_a_pod_that_is_refused_uses_up_no_cool_down(name: str) -> None:
    node = node_with(name)
    node.stays = True
    play(node, CHOOSERS[name], 1.5)
    assert node.evicted == [STUCK]
    is_refused(node)
    play(node, CHOOSERS[name], 1.5, 5)
    assert node.evicted == [STUCK, FREE]


def test_a_disk_is_measured_once_more_before_the_next_eviction() -> None:
    node = node_with("rootfs-pressure-eviction-plugin")
    play(node, of_disk, 1.5)
    assert node.evicted == [STUCK]
    for _ in range(7):  # longer than the cool-down, with the look of before
        node.round(40)
    assert node.evicted == [STUCK]
    play(node, of_disk, 1.5, 5)
    assert node.evicted == [STUCK, FREE]


def test_plugins_outside_are_asked_about_pods_that_may_go_alone() -> None:
    node = Node([kpod(STUCK), kpod(FREE)], QUIET)
    is_refused(node)
    calls: list[tuple[str, ...]] = []
    node.called = lambda call: calls.append(call.candidates if call.asks is None else call.asks[0].candidates)
    node.answer(hard("p", STUCK))
    assert calls == [(FREE,), (FREE,)]
    assert node.made.requests is not None
    assert [(each.uid, each.code) for each in node.made.requests.refused] == [(STUCK, "refused")]


@pytest.mark.parametrize(
    ("burst", "evicted"), [(0, []), (1, ["a"]), (2, ["a", "b"]), (3, ["a", "b", "z"]), (-1, ["a", "b", "z"])]
)
def test_a_soft_eviction_takes_a_place_of_the_round_behind_the_forced_ones(burst: int, evicted: list[str]) -> None:
    node = Node([kpod("a"), kpod("b"), kpod("z")], replace(QUIET, burst=burst))
    node.answer(forced("p", "a", "b"), soft("q", "z"))
    assert node.evicted == evicted
    assert ("leaves no place for a soft one" in node.made.reason) == (burst in (0, 1, 2))


def test_a_soft_one_that_was_sent_leaves_no_place_for_a_forced_one() -> None:
    # A plugin inside asks softly at once; the one outside answers in the same round, later.
    settings = KatalystSettings(plugins=("rootfs-overuse-eviction-plugin",), inner=INNER, burst=1)
    node = Node([kpod(STUCK), kpod("z")], settings)
    layers = of_layers(0, NOW_NS)
    node.measured = replace(layers, remote_plugins=("p",))
    node.round()
    assert node.evicted == [STUCK]
    assert node.made.call is not None or node.made.state.remote.began_ns is not None
    call = node.made.state.remote.call
    node.measured = replace(node.measured, remote=RemoteAnswers(call, (forced("p", "z"),), NOW_NS))
    node.round(0.1)
    assert node.evicted == [STUCK]
    # BUT the next round has one
    node.round(5)
    node.measured = replace(node.measured, remote=RemoteAnswers(node.made.state.remote.call, (forced("p", "z"),), 0))
    node.round(0.1)
    assert node.evicted == [STUCK, "z"]
