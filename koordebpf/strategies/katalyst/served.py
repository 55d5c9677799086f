"""What `koordebpf plugin serve` answers a Katalyst agent: thresholds of the node's memory, and pods for them. Pure.

Two detectors: the plugin inside for the memory of the machine, and pods that stall for the node's memory though enough
counts as free. The first that is met answers.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from koordebpf.policy.detect.stall_evict import FEATURE, stall_evict
from koordebpf.policy.evict.settings import StallSettings
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.strategies.katalyst.plugin import KatalystPod, Seen, is_cooling, may_be_evicted
from koordebpf.strategies.katalyst.plugins.memory import (
    SYSTEM_MEMORY,
    Action,
    SystemMemorySettings,
    SystemMemoryState,
    memory_of,
    ranked,
)
from koordebpf.strategies.katalyst.values import Condition, Threshold, TopPods

STALL_SCOPE = "MemoryStall"
# What lets `stall_evict` judge: it belongs to Koordinator's strategies, and there is no NodeSLO here.
STALL_GATES = {FEATURE: True}
STALL_STRATEGY = ResourceThresholdStrategy(enable=True)
_CONDITION = Condition("MemoryPressure", "node", ("NoSchedule",))


class ServedSettings(msgspec.Struct, frozen=True):
    """When memory counts as short: as an agent's own settings have it."""

    system: SystemMemorySettings = SystemMemorySettings()
    stall: StallSettings = StallSettings()


class ServedState(msgspec.Struct, frozen=True):
    """What is remembered from one call to the next; `chosen_ns`: when pods were chosen for stalls last."""

    system: SystemMemoryState = SystemMemoryState()
    chosen_ns: int | None = None


class ServedThreshold(msgspec.Struct, frozen=True):
    """A threshold that is met, or none. `lacks`: what is not measured here, in a sentence."""

    threshold: Threshold | None
    state: ServedState
    lacks: str | None = None


def served_threshold(seen: Seen, state: ServedState, settings: ServedSettings) -> ServedThreshold:
    """Return the threshold that is met: ThresholdMet.

    Fires if: free memory < watermark, or the pressure of pods lasts, as the plugin inside judges; else if
              `StallEvict` fires.
    """
    looked = SYSTEM_MEMORY.judge(seen, state.system, settings.system)
    state = replace(state, system=looked.state)
    found = looked.threshold or _stalls(seen, settings.stall)
    return ServedThreshold(found, state, looked.lacks)


def served_top(
    seen: Seen, asked: Collection[str], state: ServedState, settings: ServedSettings, scope: str, top_n: int
) -> tuple[TopPods, ServedState]:
    """Return the pods to evict for a threshold, out of those that the agent asks about: GetTopEvictionPods.

    A pod that was not measured comes last, and one that Katalyst would refuse to evict is left out. None while the
    last ones cool down.

    Args:
        seen: the node, with all pods that are known.
        asked: UIDs.
        state: of the threshold.
        settings: of the threshold.
        scope: which of the detectors is asked.
        top_n: at most so many; 0: all.
    """
    pods = tuple(each for each in seen.active if each.pod.uid in asked and may_be_evicted(each))
    if scope != STALL_SCOPE:
        top, system = SYSTEM_MEMORY.top_pods(_about(seen, pods), state.system, settings.system, top_n)
        return top, replace(state, system=system)
    if _stalls(seen, settings.stall) is None or is_cooling(seen, state.chosen_ns, (), settings.system.cool_down_ns):
        return TopPods(()), state
    chosen = ranked(pods, Action.RECLAIMED, memory_of, top_n)
    uids = tuple(each.pod.uid for each in chosen)
    return TopPods(uids, settings.system.reclaimed_grace_seconds), replace(state, chosen_ns=seen.now_ns)


def _about(seen: Seen, pods: tuple[KatalystPod, ...]) -> Seen:
    return replace(seen, candidates=pods)


def _stalls(seen: Seen, settings: StallSettings) -> Threshold | None:
    verdict = stall_evict(seen.view, settings.full_percent, settings.seconds)
    if not verdict.fires or verdict.stall is None:
        return None
    observed = 100 * verdict.stall.ratio
    return Threshold("hard", STALL_SCOPE, settings.full_percent, observed, "greater_than", 0, _CONDITION)
