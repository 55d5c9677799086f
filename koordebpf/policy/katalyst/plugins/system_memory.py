"""Eviction for the memory of the whole machine: free below its watermark, or pressure of pods. Pure.

Source: katalyst-core pkg/agent/evictionmanager/plugin/memory/system_pressure.go.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from koordebpf.policy.katalyst.plugin import Grace, InnerPlugin, Looked, Seen, coming_back, is_cooling
from koordebpf.policy.katalyst.plugins.ranking import Action, memory_of, ranked
from koordebpf.state.katalyst.measured import Condition, SystemMemory, Threshold, TopPods
from koordebpf.units import NS_PER_S, format_bytes

SCOPE = "SystemMemory"
_CONDITION = Condition("MemoryPressure", "node", ("NoSchedule",))
_FACTOR_OF = 10_000  # vm.watermark_scale_factor counts ten-thousandths
_FULL_AFTER = 3  # times the duration: pods of every level
_PRESSED_PERCENT, _PRESSED_PODS = 1, 3

NotNegative = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


class SystemMemorySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the machine counts as short of memory.

    `is_on`              the machine is judged. Why on: Katalyst's eviction-enable-system-level.
    `free_minimum_bytes` free memory below this is too little, where it is more than the watermark. Why 0: Katalyst's.
    `counts_cache`       what can be reclaimed counts as free, so that a flood of page cache evicts no pod. Why on: free
                         memory alone is near its watermark whenever files are read; Katalyst counts it alone.
    `some_percent`       `some avg10` of the burstable level from which pods' own pressure is looked at, cgroup v2. Why
                         15: Katalyst's.
    `pods_percent`       mean `some avg10` of the pods from which the clock runs. Why 4: Katalyst's.
    `duration_ns`        for so long before reclaimed pods go; three times as long before every pod may. Why 15 s:
                         Katalyst's.
    `kswapd_pages`       a second that kswapd reclaims, from which pods of every level may go; None: no number is too
                         much. Why None: Katalyst has 2000 pages, and has not looked at them since 2024. Page cache
                         alone makes kswapd reclaim as much.
    `kswapd_duration_ns` for so long before they go. Why 2 min: Katalyst's.
    `cool_down_ns`       between two evictions. Why 35 s: Katalyst's.
    `grace_seconds`      of an evicted pod where pods of every level may go; None: its own. Why None: Katalyst's.
    `reclaimed_grace_seconds` the same where reclaimed ones alone may go. Why 1: Katalyst's.
    """

    is_on: bool = True
    free_minimum_bytes: NotNegative = 0
    counts_cache: bool = True
    some_percent: NotNegative = 15
    pods_percent: NotNegative = 4
    duration_ns: int = 15 * NS_PER_S
    kswapd_pages: Annotated[int, msgspec.Meta(gt=0)] | None = None
    kswapd_duration_ns: int = 120 * NS_PER_S
    cool_down_ns: int = 35 * NS_PER_S
    grace_seconds: Grace = None
    reclaimed_grace_seconds: Grace = 1


class SystemMemoryState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is remembered of the rounds before.

    `pressed_ns` since when pods are under pressure; None: they are not.
    `chosen_ns`  when pods were chosen last; None: never; and `chosen`, which.
    `stolen`     pages that kswapd had reclaimed, as of `stolen_ns`; `steal_rate` pages a second until then.
    `stealing_ns` since when that is too much; None: it is not.
    """

    pressed_ns: int | None = None
    chosen_ns: int | None = None
    chosen: tuple[str, ...] = ()
    stolen_ns: int | None = None
    stolen: int = 0
    steal_rate: float = 0.0
    stealing_ns: int | None = None


class SystemMemoryPlugin(InnerPlugin[SystemMemoryState, SystemMemorySettings]):
    """system-memory-pressure-eviction-plugin."""

    name = "system-memory-pressure-eviction-plugin"
    settings = SystemMemorySettings
    state = SystemMemoryState

    def look(self, seen: Seen, state: SystemMemoryState, settings: SystemMemorySettings) -> Looked[SystemMemoryState]:
        """Return a hard threshold while memory is short."""
        system = seen.measured.system
        if not settings.is_on:
            return Looked(state=state)
        if system is None:
            return Looked(state=state, lacks="the machine's free memory was not measured")
        state = _after_steals(seen.now_ns, system, state, settings)
        state = msgspec.structs.replace(state, pressed_ns=_pressed_since(seen, system, state, settings))
        lacks = None
        if system.pressure is not None and asks_pods(system.pressure, settings) and not system.pods_pressure:
            lacks = "the pressure of pods was not measured"
        found = _short(seen.now_ns, system, state, settings)
        if found is None:
            return Looked(state=state, lacks=lacks)
        _, value, observed, is_short = found
        return Looked(
            state=state,
            lacks=lacks,
            threshold=Threshold(
                "hard", SCOPE, value, observed, "less_than" if is_short else "greater_than", 0, _CONDITION
            ),
        )

    def top_pods(
        self, seen: Seen, state: SystemMemoryState, settings: SystemMemorySettings, top_n: int
    ) -> tuple[TopPods, SystemMemoryState]:
        """Return the pods to evict: none while the last ones cool down."""
        system, now_ns = seen.measured.system, seen.now_ns
        if system is None or is_cooling(seen, state.chosen_ns, state.chosen, settings.cool_down_ns):
            return TopPods(()), state
        found = _short(now_ns, system, state, settings)
        if found is None:
            return TopPods(()), state
        action, value, observed, is_short = found
        if is_short and (waits := coming_back(seen, value - observed, memory_of, format_bytes)) is not None:
            return TopPods((), waits=waits), state
        pods = ranked(seen.candidates, action, memory_of, top_n)
        grace_s = settings.grace_seconds if action is Action.EVERY_POD else settings.reclaimed_grace_seconds
        uids = tuple(each.pod.uid for each in pods)
        if uids:
            state = msgspec.structs.replace(state, chosen_ns=now_ns, chosen=uids)
        return TopPods(uids, grace_s), state


SYSTEM_MEMORY = SystemMemoryPlugin()


def free_threshold_bytes(system: SystemMemory, settings: SystemMemorySettings) -> int:
    """Return the free memory below which the machine is short."""
    return max(settings.free_minimum_bytes, system.total_bytes * system.scale_factor // _FACTOR_OF)


def free_bytes(system: SystemMemory, settings: SystemMemorySettings) -> int:
    """Return what counts as free."""
    return max(system.available_bytes, system.free_bytes) if settings.counts_cache else system.free_bytes


def used_threshold_bytes(system: SystemMemory, settings: SystemMemorySettings) -> int | None:
    """Return the use of memory, MemTotal - MemAvailable, from which the machine may be short; None: it is not judged.

    Where free memory alone counts, that says nothing: it is looked at in every regular round.
    """
    threshold = free_threshold_bytes(system, settings)
    if not settings.is_on or not settings.counts_cache or not threshold:
        return None
    return system.total_bytes - threshold + 1


def asks_pods(pressure: float, settings: SystemMemorySettings) -> bool:
    """Tell whether, at this pressure of the burstable level in percent, the pressure of each pod counts."""
    return settings.is_on and pressure >= settings.some_percent


def is_below(system: SystemMemory, settings: SystemMemorySettings) -> bool:
    """Tell whether less is free than there has to be."""
    return free_bytes(system, settings) < free_threshold_bytes(system, settings)


def action_of(
    now_ns: int, system: SystemMemory, state: SystemMemoryState, settings: SystemMemorySettings
) -> Action | None:
    """Return which pods may go now; None: the machine is not short."""
    found = _short(now_ns, system, state, settings)
    return found[0] if found else None


# What may go, the value that was crossed, the one that was seen, and whether it is too low; None: it is not short.
def _short(
    now_ns: int, system: SystemMemory, state: SystemMemoryState, settings: SystemMemorySettings
) -> tuple[Action, float, float, bool] | None:
    threshold, free = free_threshold_bytes(system, settings), free_bytes(system, settings)
    is_short = free < threshold
    is_stealing = state.stealing_ns is not None and now_ns - state.stealing_ns >= settings.kswapd_duration_ns
    if is_stealing and settings.kswapd_pages is not None:
        return Action.EVERY_POD, float(settings.kswapd_pages), state.steal_rate, False
    if state.pressed_ns is not None and system.pressure is not None:
        pressed_ns, duration_ns = now_ns - state.pressed_ns, settings.duration_ns
        if pressed_ns >= _FULL_AFTER * duration_ns:
            return Action.EVERY_POD, float(settings.some_percent), system.pressure, False
        if pressed_ns >= duration_ns and not is_short:
            return Action.RECLAIMED, float(settings.some_percent), system.pressure, False
    return (Action.RECLAIMED, float(threshold), float(free), True) if is_short else None


# The clock starts with the look before the first one that finds too much, as Katalyst's did.
def _after_steals(
    now_ns: int, system: SystemMemory, state: SystemMemoryState, settings: SystemMemorySettings
) -> SystemMemoryState:
    if settings.kswapd_pages is None:
        return msgspec.structs.replace(state, stolen_ns=None, stealing_ns=None)
    if system.stolen_pages is None:  # a round that began ahead of its time
        return state
    before_ns = state.stolen_ns
    rate, stealing_ns = 0.0, None
    if before_ns is not None:
        if now_ns <= before_ns:
            return state
        rate = (system.stolen_pages - state.stolen) * NS_PER_S / (now_ns - before_ns)
        if rate >= settings.kswapd_pages:
            stealing_ns = before_ns if state.stealing_ns is None else state.stealing_ns
    return msgspec.structs.replace(
        state, stolen_ns=now_ns, stolen=system.stolen_pages, steal_rate=rate, stealing_ns=stealing_ns
    )


# Since when the burstable level and enough of its pods wait for memory; a look that finds less starts again.
def _pressed_since(
    seen: Seen, system: SystemMemory, state: SystemMemoryState, settings: SystemMemorySettings
) -> int | None:
    if system.pressure is None or not asks_pods(system.pressure, settings):
        return None
    of_pods = system.pods_pressure or {}
    shares = [
        of_pods[each.pod.uid]
        for each in seen.active
        if each.level in ("dedicated_cores", "shared_cores") and each.pod.uid in of_pods
    ]
    if sum(share > _PRESSED_PERCENT for share in shares) < _PRESSED_PODS:
        return None
    if sum(shares) / len(shares) < settings.pods_percent:
        return None
    return seen.now_ns if state.pressed_ns is None else state.pressed_ns
