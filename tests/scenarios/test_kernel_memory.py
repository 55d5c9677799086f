"""Memory that the kernel holds for a pod: socket buffers, pipes, page tables, slab. It comes back when the pod ends."""

from __future__ import annotations

import msgspec

from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.policy.plan import FeaturePlan
from koordebpf.report.pages.plan import plan_page
from koordebpf.state.amount import MEMORY
from koordebpf.state.measured import MemoryParts, StrayMeasure
from koordebpf.units import MIB
from tests.support.values.builders import (
    PodAndMeasure,
    feature_of,
    frame,
    host_shm,
    in_flight,
    names,
    node_plan_of,
    plan_of,
    pod,
)

INNOCENTS = [pod(f"map-{number}", anon=50, kernel=1) for number in range(5)]


def hog(*, kernel: int | None) -> PodAndMeasure:
    return pod("relay", anon=2, kernel=kernel)


def ranked(feature: FeaturePlan) -> list[str]:
    return [each.name for each in feature.candidates]


def test_the_hog_of_sockets_is_evicted_and_its_neighbours_stay() -> None:
    plan = plan_of(frame([hog(kernel=600), *INNOCENTS], used=900))
    assert names(plan.features[0]) == ["relay"]
    assert plan.features[0].balance.missing == 0
    assert "spark/relay (priority 5000, 602 MiB, 600 MiB of it kernel memory)" in plan.sentence


def test_of_little_kernel_memory_nothing_is_said() -> None:
    plan = plan_of(frame([pod("a", anon=20, kernel=30), pod("b", anon=300, kernel=100)], used=900))
    assert "kernel" not in plan.sentence
    assert [each.of(MEMORY).released // MIB for each in plan.features[0].candidates] == [400, 50]


def test_a_frame_that_does_not_tell_of_it_is_decided_as_before() -> None:
    node = frame([hog(kernel=None), *(pod(f"map-{number}", anon=50) for number in range(5))], used=900)
    assert b'kernel_bytes":null' in encode_frame(node)
    for each in (node, decode_frame(encode_frame(node).replace(b',"kernel_bytes":null', b""), "old")):
        feature = feature_of(each)
        assert ranked(feature) == ["map-4", "map-3", "map-2", "map-1", "map-0", "relay"]
        assert {candidate.kernel_bytes for candidate in feature.candidates} == {None}


def test_what_is_not_measured_is_not_zero() -> None:
    zero = frame([hog(kernel=0)], used=900)
    assert [each.kernel_bytes for each in feature_of(zero).candidates] == [0]


def test_a_tmpfs_that_stays_is_taken_off_and_kernel_memory_is_not() -> None:
    kept = pod("a", anon=300, shmem=280, kernel=100, volumes=[host_shm()])
    (candidate,) = feature_of(frame([kept], used=900)).candidates
    assert candidate.of(MEMORY).used == 400 * MIB
    assert candidate.of(MEMORY).released == 120 * MIB
    assert candidate.koordinator_credit_bytes == 300 * MIB


def test_what_leaves_already_counts_with_its_kernel_memory() -> None:
    relay = hog(kernel=600)
    node = frame([relay, *INNOCENTS], used=900, pending=[in_flight(relay, credit=602, seconds_ago=5)])
    feature = feature_of(node)
    assert feature.balance.pending == 602 * MIB
    assert names(feature) == []


def test_so_does_a_pod_whose_object_is_gone() -> None:
    memory = MemoryParts(602 * MIB, 2 * MIB, 0, 0, 0, 0, kernel_bytes=600 * MIB)
    relay = hog(kernel=600)
    node = frame(INNOCENTS, used=900, pending=[in_flight(relay, credit=602, seconds_ago=5)])
    strays = (StrayMeasure(77, "kubepods/pod77", memory, relay.pod.uid),)
    measured = msgspec.structs.replace(node.measured, strays=strays)
    assert feature_of(msgspec.structs.replace(node, measured=measured)).balance.pending == 602 * MIB


def test_the_page_shows_it_where_it_is_the_larger_part() -> None:
    page = plan_page(node_plan_of(frame([hog(kernel=600), *INNOCENTS], used=900)), 10)
    (row,) = (line for line in page.splitlines() if line.startswith("*  1"))
    assert row.split()[-2:] == ["600", "MiB"]
    assert "Koordinator  " not in page
    assert all(len(line) <= 80 for line in page.splitlines())
    plain = plan_page(node_plan_of(frame(INNOCENTS, used=900)), 10)
    assert "kernel" not in plain


def test_a_pod_that_holds_nothing_but_its_cgroups_is_not_evicted_for_them() -> None:
    empty = pod("empty", anon=0, kernel=0)
    assert empty.measure is not None
    assert empty.measure.memory is not None
    memory = msgspec.structs.replace(empty.measure.memory, usage_bytes=300 << 10, kernel_bytes=300 << 10)
    empty = msgspec.structs.replace(empty, measure=msgspec.structs.replace(empty.measure, memory=memory))
    feature = feature_of(frame([empty], used=900))
    assert [each.of(MEMORY).released for each in feature.candidates] == [0]
    assert names(feature) == []
    more = msgspec.structs.replace(memory, usage_bytes=2 * MIB, kernel_bytes=2 * MIB)
    holder = msgspec.structs.replace(empty, measure=msgspec.structs.replace(empty.measure, memory=more))
    assert names(feature_of(frame([holder], used=900))) == ["empty"]
