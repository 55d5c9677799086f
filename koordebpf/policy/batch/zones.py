"""Batch resources of each NUMA node, and whether a Node has to be written: a small change is not worth a request.

Pods are not measured by zone: what is not bound to some is divided equally.

Source: koordinator pkg/slo-controller/noderesource/plugins/batchresource/plugin.go, calculateOnNUMALevel;
        resource_calculator.go; pkg/util IsQuantityDiff.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koordebpf.policy.batch.facts import BATCH_BANDS, CpuMemory, NodeFacts, PodRequest, Usage
from koordebpf.policy.batch.formulas import (
    Kind,
    amount_of,
    batch_percents,
    normalized,
    policy_of,
    reserved_of,
    safety_margin,
    system_use,
)
from koordebpf.slo.manager.node_colocation import NodeColocation

Amounts = Mapping[str, int | None]


def sync_reason(now: Amounts, wanted: Amounts, threshold: float, since_ns: int | None, at_most_ns: int) -> str:
    """Return why the Node has to be written; "": it need not.

    `now` and `wanted` are resource → amount, None: the Node has none. What moved by more than `threshold` of the old is
    written at once, anything else once the last write is older than `at_most_ns`; `since_ns` None: it is not known.
    What did not change is never written.
    """
    small = ""
    for resource, amount in wanted.items():
        old = now.get(resource)
        if amount == old:
            continue
        if amount is None or old is None:
            return f"{resource} {'appears' if old is None else 'is reset'}"
        if abs(amount - old) > old * threshold:
            return f"{resource} {old} → {amount}: by more than {threshold:g} of it"
        small = f"{resource} {old} → {amount}"
    if small and (since_ns is None or since_ns > at_most_ns):
        return f"{small}: the last write is old"
    return ""


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
    reserved, _ = reserved_of(kind, node)
    system = sum(system_use(kind, usage, without=BATCH_BANDS))
    used = reserved if policy == "request" else max(system, reserved)
    taken = _high_priority_use(kind, pods, usage, policy, zones)
    percent, limit = batch_percents(kind, strategy)
    results = []
    for zone, pods_take in zip(node.zones, taken, strict=True):
        there = amount_of(zone.allocatable, kind)
        left = max(0, there - safety_margin(there, percent) - _share(used, zones) - pods_take)
        if limit is not None:
            left = min(left, int(there * (limit / 100.0)))
        results.append(normalized(left, node.normalization_ratio) if kind == "cpu" else left)
    return results


def _high_priority_use(kind: Kind, pods: Sequence[PodRequest], usage: Usage, policy: str, zones: int) -> list[int]:
    taken = [0] * zones
    reported = {use.key: use for use in usage.pods}
    for pod in pods:
        use = reported.pop(pod.key, None)
        if pod.band in BATCH_BANDS:
            continue
        request = amount_of(pod, kind)
        used = request if use is None or (pod.is_lse and kind == "cpu" and policy == "usage") else amount_of(use, kind)
        amount = {"usage": used, "request": request}.get(policy, max(used, request))
        # A zone that is not there is ignored; a pod without any that is there has a share of all.
        own = {zone for zone in pod.zones if 0 <= zone < zones} or range(zones)
        for zone in own:
            taken[zone] += _share(amount, len(own))
    if policy != "request":
        gone = sum(_share(amount_of(use, kind), zones) for use in reported.values() if use.band not in BATCH_BANDS)
        taken = [each + gone for each in taken]
    return taken


def _share(amount: int, parts: int) -> int:
    return -(-amount // parts)
