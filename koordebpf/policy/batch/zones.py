"""Batch resources of each NUMA node. Pods are not measured by zone: what is not bound to some is divided equally.

Source: koordinator pkg/slo-controller/noderesource/plugins/batchresource/plugin.go, calculateOnNUMALevel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from koordebpf.policy.batch.facts import BATCH_BANDS, CpuMemory, NodeFacts, PodRequest, Usage
from koordebpf.policy.batch.formulas import Kind, policy_of, safety_margin, system_use
from koordebpf.slo.manager.node_colocation import NodeColocation


def zone_results(
    node: NodeFacts, pods: Sequence[PodRequest], usage: Usage, strategy: NodeColocation
) -> Mapping[str, CpuMemory]:
    """Return zone → batch CPU and memory; empty where the topology has no zones with both."""
    if not node.zones:
        return {}
    cpu = _of_kind("cpu", node, pods, usage, strategy)
    memory = _of_kind("memory", node, pods, usage, strategy)
    return {zone.name: CpuMemory(*both) for zone, both in zip(node.zones, zip(cpu, memory, strict=True), strict=True)}


def _of_kind(
    kind: Kind, node: NodeFacts, pods: Sequence[PodRequest], usage: Usage, strategy: NodeColocation
) -> list[int]:
    zones = len(node.zones)
    policy = policy_of(kind, strategy)
    reserved = max(0, _of(node.capacity, kind) - _of(node.allocatable, kind), _of(node.reserved, kind))
    system = sum(system_use(kind, usage, without=BATCH_BANDS))
    used = reserved if policy == "request" else max(system, reserved)
    taken = _taken(kind, pods, usage, policy, zones)
    percent = strategy.cpuReclaimThresholdPercent if kind == "cpu" else strategy.memoryReclaimThresholdPercent
    limit = strategy.batchCPUThresholdPercent if kind == "cpu" else strategy.batchMemoryThresholdPercent
    results = []
    for zone, pods_take in zip(node.zones, taken, strict=True):
        there = _of(zone.allocatable, kind)
        left = max(0, there - safety_margin(there, percent) - _share(used, zones) - pods_take)
        if limit is not None:
            left = min(left, int(there * (limit / 100.0)))
        if kind == "cpu" and node.normalization_ratio > 1 and math.isfinite(node.normalization_ratio):
            left = math.ceil(int(left * 1000 * node.normalization_ratio) / 1000)
        results.append(left)
    return results


def _taken(kind: Kind, pods: Sequence[PodRequest], usage: Usage, policy: str, zones: int) -> list[int]:
    taken = [0] * zones
    reported = {use.key: use for use in usage.pods}
    for pod in pods:
        use = reported.pop(pod.key, None)
        if pod.band in BATCH_BANDS:
            continue
        request = _of(pod, kind)
        used = request if use is None or (pod.is_lse and kind == "cpu" and policy == "usage") else _of(use, kind)
        amount = {"usage": used, "request": request}.get(policy, max(used, request))
        # A zone that is not there is ignored; a pod without any that is there has a share of all.
        own = {zone for zone in pod.zones if 0 <= zone < zones} or range(zones)
        for zone in own:
            taken[zone] += _share(amount, len(own))
    if policy != "request":
        gone = sum(_share(_of(use, kind), zones) for use in reported.values() if use.band not in BATCH_BANDS)
        taken = [each + gone for each in taken]
    return taken


def _share(amount: int, parts: int) -> int:
    return -(-amount // parts)


def _of(amount: object, kind: Kind) -> int:
    value: int = getattr(amount, "cpu_millicpu" if kind == "cpu" else "memory_bytes")
    return value
