"""Eviction where reclaimed pods request more than the node's CNR has to give now. Pure.

Source: katalyst-core pkg/agent/evictionmanager/plugin/resource/{resources,reclaimed_resources}.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import msgspec

from koordebpf.policy.katalyst.plugin import NO_CNR, Grace, InnerPlugin, Looked, Seen, coming_back
from koordebpf.policy.katalyst.pods import KatalystPod
from koordebpf.policy.strategy import Empty
from koordebpf.state.katalyst.measured import Cnr, Met, Threshold, TopPods
from koordebpf.state.pods.requests import RECLAIMED_CPU, RECLAIMED_MEMORY
from koordebpf.units import NS_PER_S

Amount = Callable[[KatalystPod], int]
Factor = Annotated[float, msgspec.Meta(gt=0)]


class ReclaimedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When reclaimed pods request too much: of the node, or of a NUMA node, each in its own section.

    `is_on`        what they request is judged. Why on: Katalyst's eviction-plugins * has it.
    `cpu_factor`   of the CPU that the CNR has to give. Why 5: Katalyst's.
    `memory_factor` of the memory that it has to give. Why 5: Katalyst's.
    `soft_cpu_factor` of CPU for a soft threshold. Why None: Katalyst documents 1.5, and never reads it.
    `soft_memory_factor` the same of memory. Why None: Katalyst documents 1.2, and never reads it.
    `skip_zero`    resources of which 0 to give is no shortage. Why none: Katalyst's.
    `tolerance_ns` for so long before a pod is evicted. Why 0: Katalyst's.
    `grace_seconds` of an evicted pod; None: its own. Why 60: Katalyst's.
    """

    is_on: bool = True
    cpu_factor: Factor = 5.0
    memory_factor: Factor = 5.0
    soft_cpu_factor: Factor | None = None
    soft_memory_factor: Factor | None = None
    skip_zero: frozenset[str] = frozenset()
    tolerance_ns: int = 0
    grace_seconds: Grace = 60


class ReclaimedPlugin(InnerPlugin[Empty, ReclaimedSettings]):
    """reclaimed-resource-pressure-eviction-plugin."""

    name = "reclaimed-resource-pressure-eviction-plugin"
    settings = ReclaimedSettings
    state = Empty

    def look(self, seen: Seen, state: Empty, settings: ReclaimedSettings) -> Looked[Empty]:
        """Return a threshold for the first resource, by name, of which reclaimed pods request too much."""
        if not settings.is_on:
            return Looked(state=state)
        cnr = seen.measured.cnr
        if cnr is None:
            return Looked(state=state, lacks=NO_CNR)
        if not cnr.allocatable:
            return Looked(state=state, lacks="the CustomNodeResource has no allocatable resources")
        return Looked(state=state, threshold=_threshold(seen, cnr, settings))

    def top_pods(self, seen: Seen, state: Empty, settings: ReclaimedSettings, top_n: int) -> tuple[TopPods, Empty]:
        """Return the reclaimed pods that request the most of the resource; for a soft threshold those to notify."""
        cnr = seen.measured.cnr
        found = None if cnr is None else _threshold(seen, cnr, settings)
        if found is None:
            return TopPods(()), state
        return top_of(found, found.scope, seen, _reclaimed_amount(found.scope), settings, top_n), state


RECLAIMED = ReclaimedPlugin()


def _threshold(seen: Seen, cnr: Cnr, settings: ReclaimedSettings) -> Threshold | None:
    asked = requested(each.pod.terms.katalyst_requests for each in seen.active if each.is_reclaimed)
    return exceeded(asked, cnr.allocatable, settings)


def requested(requests: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return what pods request together, by resource."""
    sums: dict[str, int] = {}
    for each in requests:
        for resource, amount in each.items():
            sums[resource] = sums.get(resource, 0) + amount
    return sums


def exceeded(asked: Mapping[str, int], total: Mapping[str, int], settings: ReclaimedSettings) -> Threshold | None:
    """Return a threshold for the first resource, by name, of which more is requested than its factor allows.

    Hard thresholds come first. Its scope is the resource.
    """
    hard = {RECLAIMED_CPU: settings.cpu_factor, RECLAIMED_MEMORY: settings.memory_factor}
    soft = {RECLAIMED_CPU: settings.soft_cpu_factor, RECLAIMED_MEMORY: settings.soft_memory_factor}
    factors: tuple[tuple[Met, Mapping[str, float | None]], ...] = (("hard", hard), ("soft", soft))
    for met, of in factors:
        for resource in sorted(asked):
            there, factor = total.get(resource), of.get(resource)
            if there is None or factor is None or (there <= 0 and resource in settings.skip_zero):
                continue
            if asked[resource] > factor * there:
                grace_s = settings.tolerance_ns // NS_PER_S
                return Threshold(met, resource, factor * there, float(asked[resource]), "greater_than", grace_s)
    return None


def top_of(
    threshold: Threshold, resource: str, seen: Seen, amount: Amount, settings: ReclaimedSettings, top_n: int
) -> TopPods:
    """Return the pods that request the most of a resource; for a soft threshold those to notify.

    None where pods that leave already cover what is missing.

    Args:
        threshold: which is met.
        resource: of which too much is requested.
        seen: as of the round.
        amount: what a pod requests of it; 0: it may not go for it.
        settings: of the plugin.
        top_n: at most so many for a hard threshold; 0: all.
    """
    need = threshold.observed - threshold.value
    waits = coming_back(seen, need, amount, lambda given: f"{given:,} of {resource}")
    if waits is not None:
        return TopPods((), waits=waits)
    if threshold.met == "hard":
        chosen = _largest((each for each in seen.candidates if amount(each)), amount)
        chosen = chosen[:top_n] if top_n else chosen
    else:
        chosen = _above((each for each in seen.soft if amount(each)), amount, threshold.value)
    return TopPods(tuple(each.pod.uid for each in chosen), settings.grace_seconds)


def _largest(pods: Iterable[KatalystPod], amount: Amount) -> list[KatalystPod]:
    return sorted(pods, key=lambda each: (-amount(each), each.pod.namespace, each.pod.name, each.pod.uid))


# Of the pods that want a notice the largest, which do not fit below the limit.
def _above(pods: Iterable[KatalystPod], amount: Amount, limit: float) -> list[KatalystPod]:
    ordered = _largest((each for each in pods if each.wants_notice), amount)
    fitting, kept = 0, 0
    for each in reversed(ordered):
        fitting += amount(each)
        if fitting >= limit:
            break
        kept += 1
    return ordered[: max(len(ordered) - kept, 1)]


def _reclaimed_amount(resource: str) -> Amount:
    return lambda each: each.pod.terms.katalyst_requests.get(resource, 0) if each.is_reclaimed else 0
