"""Batch resources of NUMA zones against sums made by hand."""

from __future__ import annotations

import msgspec

from koordebpf.policy.batch.facts import Zone
from koordebpf.policy.batch.zones import zone_results
from tests.unit.policy.batch_nodes import GIB, NODE, ON, application, both, pod, usage, use

TWO = msgspec.structs.replace(NODE, zones=(Zone("node-0", both(50, 200)), Zone("node-1", both(48, 196))))


def results(node: object = TWO, pods: tuple = (), report: object = None, **fields: object) -> list[tuple[int, int]]:
    found = zone_results(node, pods, report or usage(), msgspec.structs.replace(ON, **fields))
    return [(each.cpu_millicpu, each.memory_bytes) for each in found.values()]


def test_the_allocatable_of_a_zone_stands_for_its_capacity_and_reservations_are_halved() -> None:
    # 50 − 20 − 1 and 200 − 70 − 2; 48 − 19.2 − 1 and 196 − 68.6 − 2.
    assert results() == [(29_000, 128 * GIB), (27_800, (196 - 2) * GIB - int(196 * GIB * 0.35))]


def test_a_pod_counts_in_the_zones_it_was_allocated() -> None:
    pods = (pod("bound", 8, 16, zones=(1,)), pod("free", 4, 8))
    report = usage(use("bound", 6, 10), use("free", 2, 4))
    assert results(pods=pods, report=report)[0] == (28_000, 126 * GIB)
    assert results(pods=pods, report=report)[1][0] == 20_800


def test_zones_that_are_not_there_are_ignored() -> None:
    report = usage(use("odd", 4, 8))
    everywhere = results(pods=(pod("odd", 4, 8),), report=report)
    assert results(pods=(pod("odd", 4, 8, zones=(7, -1)),), report=report) == everywhere
    assert results(pods=(pod("odd", 4, 8, zones=(0, 9)),), report=report)[0][0] == 25_000


def test_pods_that_are_gone_and_host_applications_are_divided() -> None:
    report = usage(use("gone", 2, 4), system=both(4, 8), host_applications=(application("a", 2, 4),))
    assert results(report=report)[0] == (26_000, (200 - 70 - 6 - 2) * GIB)


def test_the_policies_and_the_limits_hold_for_zones() -> None:
    pods = (pod("a", 10, 20), pod("lse", 6, 8, lse=True), pod("new", 2, 2))
    report = usage(use("a", 4, 30), use("lse", 1, 2))
    assert results(pods=pods, report=report)[0] == (23_000, (128 - 15 - 1 - 1) * GIB)
    assert results(pods=pods, report=report, memoryCalculatePolicy="request")[0][1] == (128 - 10 - 4 - 1) * GIB
    both_policies = {"cpuCalculatePolicy": "maxUsageRequest", "memoryCalculatePolicy": "maxUsageRequest"}
    assert results(pods=pods, report=report, **both_policies)[0] == (20_000, (128 - 15 - 4 - 1) * GIB)
    assert results(batchCPUThresholdPercent=10)[0][0] == 5_000


def test_normalization_multiplies_cpu() -> None:
    assert results(msgspec.structs.replace(TWO, normalization_ratio=1.5))[0] == (43_500, 128 * GIB)


def test_a_node_without_zones_has_none() -> None:
    assert results(NODE) == []


def test_bytes_are_divided_upwards() -> None:
    assert results(report=usage(use("gone", 0, 7 / GIB)))[0][1] == (200 - 70 - 2) * GIB - 4
