"""Plugins that judge memory: of a NUMA node, of the machine, and what pods hold above their requests. Pure.

Source: katalyst-core pkg/agent/evictionmanager/plugin/memory.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.policy.strategy import Empty
from koordebpf.slo.katalyst import rss_overuse_ratio
from koordebpf.state.measured import NotNegative
from koordebpf.state.view import PodView
from koordebpf.strategies.katalyst.plugin import (
    Grace,
    InnerPlugin,
    KatalystPod,
    KeyValue,
    Looked,
    Seen,
    coming_back,
    is_cooling,
    pairs,
)
from koordebpf.strategies.katalyst.values import Condition, EvictAsked, NumaMemory, SystemMemory, Threshold, TopPods
from koordebpf.units import GIB, MIB, NS_PER_S, PAGE_BYTES, format_bytes, gained

Held = Callable[[KatalystPod], int | None]
_NUMA_SCOPE = "NumaMemory"
_GUARD, _GAP, _RESERVE = 256 * MIB // PAGE_BYTES, GIB // PAGE_BYTES, 4 * GIB // PAGE_BYTES
_MIN_TIMES = 2  # before what is far below the watermark counts twice
_SYSTEM_SCOPE = "SystemMemory"
_CONDITION = Condition("MemoryPressure", "node", ("NoSchedule",))
_FACTOR_OF = 10_000  # vm.watermark_scale_factor counts ten-thousandths
_FULL_AFTER = 3  # times the duration: pods of every level
_PRESSED_PERCENT, _PRESSED_PODS = 1, 3
Bounded = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


# Which pods a memory plugin chooses, and in which order.
#
# Source: helper.go.


class Action(enum.Enum):
    """Which pods may go."""

    RECLAIMED = "reclaimed"
    EVERY_POD = "eviction"


def memory_of(each: KatalystPod) -> int | None:
    """Return what a pod holds of the node's memory, page cache aside; None: it was not measured."""
    return each.pod.memory.held_bytes if each.pod.memory is not None else None


def ranked(pods: Iterable[KatalystPod], action: Action, held: Held, top_n: int) -> tuple[KatalystPod, ...]:
    """Return the pods to evict, the first at the front: reclaimed ones, then by priority, then the largest.

    One whose QoS level cannot be read counts as not reclaimed, and one that was not measured holds nothing: Katalyst
    puts both first. Name and UID settle ties, which Katalyst leaves to chance.

    Args:
        pods: to choose from.
        action: whether any but reclaimed ones may go.
        held: what an eviction of a pod releases, in bytes.
        top_n: at most so many; 0: all.
    """
    chosen = [each for each in pods if each.is_reclaimed or action is Action.EVERY_POD]

    def key(each: KatalystPod) -> tuple[bool, int, int, str, str, str]:
        pod = each.pod
        return not each.is_reclaimed, pod.priority or 0, -(held(each) or 0), pod.namespace, pod.name, pod.uid

    chosen.sort(key=key)
    return tuple(chosen[:top_n] if top_n else chosen)


# Eviction for the memory of single NUMA nodes: free pages below their watermarks, for how many rounds.
#
# Source: numa_pressure.go.


class NumaMemorySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a NUMA node counts as short of memory.

    `is_on`            NUMA nodes are judged. Why on: Katalyst's eviction-enable-numa-level.
    `counts_cache`     page cache that can be reclaimed counts as free, so that a flood of it evicts no pod. Why on: as
                       of system memory; Katalyst counts free pages alone.
    `victim_min_ratio` of the node's memory, which a pod must hold there to be chosen. Why 0.001: Katalyst's.
    `times`            below the watermark in so many rounds before pods of every level may go. Why 12: Katalyst's.
    `reclaimed_times`  the same for reclaimed pods. Why 6: Katalyst's.
    `wait_rounds`      from below the lowest watermark to pods of every level. Why 1: Katalyst's.
    `grace_seconds`    of an evicted pod where pods of every level may go; None: its own. Why None: Katalyst's.
    `reclaimed_grace_seconds` the same where reclaimed ones alone may go. Why 1: Katalyst's.
    """

    is_on: bool = True
    counts_cache: bool = True
    victim_min_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.001
    times: NotNegative = 12
    reclaimed_times: NotNegative = 6
    wait_rounds: NotNegative = 1
    grace_seconds: Grace = None
    reclaimed_grace_seconds: Grace = 1


class NodeTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How often one NUMA node was below its watermark; `action` is what may go; None: nothing may."""

    times: int = 0
    action: str | None = None
    is_under: bool = False


class NumaMemoryState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """By the id of the NUMA node, as text."""

    nodes: Mapping[str, NodeTimes] = {}


class NumaMemoryPlugin(InnerPlugin[NumaMemoryState, NumaMemorySettings]):
    """numa-memory-pressure-eviction-plugin."""

    name = "numa-memory-pressure-eviction-plugin"
    settings = NumaMemorySettings
    state = NumaMemoryState

    def judge(self, seen: Seen, state: NumaMemoryState, settings: NumaMemorySettings) -> Looked[NumaMemoryState]:
        """Return a hard threshold while any NUMA node is under pressure; each call counts as one round."""
        numa = seen.measured.numa
        if not settings.is_on:
            return Looked(state=state)
        if not numa:
            return Looked(state=state, lacks="the memory of NUMA nodes was not measured")
        # Each round counts, so none may come early but for what is critical.
        before = {str(each.node): state.nodes.get(str(each.node), NodeTimes()) for each in numa}
        is_early = not seen.is_regular and self.name in seen.pressing
        counts = [each for each in numa if seen.is_regular or (is_early and is_critical(each, settings))]
        state = NumaMemoryState(
            {**before, **{str(each.node): counted(each, before[str(each.node)], settings) for each in counts}}
        )
        return Looked(state=state, threshold=_threshold(numa, state, settings))

    def top_pods(
        self, seen: Seen, state: NumaMemoryState, settings: NumaMemorySettings, top_n: int
    ) -> tuple[TopPods, NumaMemoryState]:
        """Return the pods to evict of each NUMA node under pressure, the most of each first."""
        chosen: dict[str, None] = {}
        waits: list[str] = []
        is_every = False
        for numa in seen.measured.numa or ():
            of_node = state.nodes.get(str(numa.node), NodeTimes())
            if of_node.action is None:
                continue
            action = Action(of_node.action)
            is_every = is_every or action is Action.EVERY_POD
            low_bytes, free = watermarks(numa)[1] * PAGE_BYTES, free_pages(numa, settings) * PAGE_BYTES
            if (found := coming_back(seen, low_bytes - free, _held_on(numa), format_bytes)) is not None:
                waits.append(f"of NUMA node {numa.node}, {found}")
                continue
            pods = [each for each in seen.candidates if _has_share(numa, each, settings)]
            chosen.update(dict.fromkeys(each.pod.uid for each in ranked(pods, action, _held_on(numa), top_n)))
        grace_s = settings.grace_seconds if is_every else settings.reclaimed_grace_seconds
        return TopPods(tuple(chosen), grace_s, "; ".join(waits) or None), state


NUMA_MEMORY = NumaMemoryPlugin()


def free_pages(numa: NumaMemory, settings: NumaMemorySettings) -> int:
    """Return what counts as free of a NUMA node. Of page cache that is all but what MemAvailable leaves out, too.

    Pages that are read twice are active and can be reclaimed all the same.

    Source: mm/show_mem.c, si_mem_available.
    """
    if not settings.counts_cache:
        return numa.free_pages
    cache = numa.inactive_file_pages + numa.active_file_pages
    return numa.free_pages + cache - min(cache // 2, numa.low_pages)


def are_short(numa: Iterable[NumaMemory], settings: NumaMemorySettings) -> bool:
    """Tell whether any NUMA node is below its low watermark: only then is looked at what pods hold there."""
    return settings.is_on and any(free_pages(each, settings) < watermarks(each)[1] for each in numa)


def is_critical(numa: NumaMemory, settings: NumaMemorySettings) -> bool:
    """Tell whether a NUMA node is below its lowest watermark."""
    return free_pages(numa, settings) < watermarks(numa)[0]


def are_critical(numa: Iterable[NumaMemory], settings: NumaMemorySettings) -> bool:
    """Tell whether any is."""
    return any(is_critical(each, settings) for each in numa)


def watermarks(numa: NumaMemory) -> tuple[int, int]:
    """Return the lowest and the low watermark that count, in pages.

    A node with little page cache is short earlier: there is nothing to reclaim. The lowest is never above the low one,
    as Katalyst's is on nodes with small watermarks.
    """
    low, lowest = numa.low_pages + _GUARD, numa.min_pages + _GAP
    if numa.inactive_file_pages < max(_RESERVE, low):
        low = max(_RESERVE, low + _GAP)
    return min(lowest, low), low


def counted(numa: NumaMemory, before: NodeTimes, settings: NumaMemorySettings) -> NodeTimes:
    """Return how often a NUMA node was below its watermark, this round included, and what may go for it."""
    lowest, low = watermarks(numa)
    free, times = free_pages(numa, settings), before.times
    fast = settings.times - settings.wait_rounds
    is_under = False
    if free < lowest:
        is_under = True
        times = times + 1 if times >= fast else fast  # Katalyst's stays there, below what it waits for
    elif free < low:
        times += 1
        is_far = free < (lowest + low) // 2 or (low > _GAP and free < low - _GAP)
        if times > _MIN_TIMES and is_far:
            times += 1
        is_under = times > settings.reclaimed_times
    else:
        times = min(max(times - 1, 0), settings.reclaimed_times)
    action: Action | None = Action.RECLAIMED if is_under else None
    if times >= settings.times:
        action = Action.EVERY_POD
    return NodeTimes(times, action.value if action else None, is_under)


def _threshold(numa: Iterable[NumaMemory], state: NumaMemoryState, settings: NumaMemorySettings) -> Threshold | None:
    under = [each for each in numa if state.nodes.get(str(each.node), NodeTimes()).is_under]
    if not under:
        return None
    worst = min(under, key=lambda each: free_pages(each, settings) - watermarks(each)[1])
    low, free = watermarks(worst)[1] * PAGE_BYTES, free_pages(worst, settings) * PAGE_BYTES
    return Threshold("hard", _NUMA_SCOPE, float(low), float(free))


def _held_on(numa: NumaMemory) -> Callable[[KatalystPod], int | None]:
    return lambda each: numa.pods.get(each.pod.uid)


def _has_share(numa: NumaMemory, each: KatalystPod, settings: NumaMemorySettings) -> bool:
    held = numa.pods.get(each.pod.uid)
    return held is not None and numa.total_bytes > 0 and held >= settings.victim_min_ratio * numa.total_bytes


# Eviction for the memory of the whole machine: free below its watermark, or pressure of pods.
#
# Source: system_pressure.go.


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
    free_minimum_bytes: Bounded = 0
    counts_cache: bool = True
    some_percent: Bounded = 15
    pods_percent: Bounded = 4
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

    def judge(self, seen: Seen, state: SystemMemoryState, settings: SystemMemorySettings) -> Looked[SystemMemoryState]:
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
                "hard", _SYSTEM_SCOPE, value, observed, "less_than" if is_short else "greater_than", 0, _CONDITION
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
        if (stolen := gained(system.stolen_pages, state.stolen)) is None:  # and counts from here again
            return msgspec.structs.replace(state, stolen_ns=now_ns, stolen=system.stolen_pages)
        rate = stolen * NS_PER_S / (now_ns - before_ns)
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


# Soft eviction of pods whose resident memory is above a multiple of what they request.
#
# Source: rss_overuse.go.


class RssOveruseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a pod uses too much.

    `is_on`  pods are judged. Why off: Katalyst's eviction-enable-rss-overuse.
    `factor` of the pod's memory request; a pod's own annotation takes precedence. Why 1.05: Katalyst's.
    `labels` only pods that have all of these, each as key=value. Why none: Katalyst's, all pods.
    """

    is_on: bool = False
    factor: Annotated[float, msgspec.Meta(gt=0)] = 1.05
    labels: tuple[KeyValue, ...] = ()


class RssOverusePlugin(InnerPlugin[Empty, RssOveruseSettings]):
    """rss-overuse-eviction-plugin."""

    name = "rss-overuse-eviction-plugin"
    settings = RssOveruseSettings
    state = Empty

    def judge(self, seen: Seen, state: Empty, settings: RssOveruseSettings) -> Looked[Empty]:
        """Return the pods above their threshold; one without a request in every container is none."""
        if not settings.is_on:
            return Looked(state=state)
        judged = [(each, resident_bytes(each.pod)) for each in seen.soft if is_judged(each, settings)]
        asked = [_asked(each, rss_bytes, settings) for each, rss_bytes in judged if rss_bytes is not None]
        unknown = [each.pod.key for each, rss_bytes in judged if rss_bytes is None and each.pod.cgroup_id is not None]
        lacks = None
        if unknown and seen.is_regular:  # in a round ahead of its time it is not measured
            more = f" and {len(unknown) - 1} more" if unknown[1:] else ""
            lacks = f"the resident memory of {unknown[0]}{more} was not measured"
        return Looked(state=state, evict=tuple(each for each in asked if each is not None), lacks=lacks)


RSS_OVERUSE = RssOverusePlugin()


def resident_bytes(pod: PodView) -> int | None:
    """Return a pod's anonymous memory, without its tmpfs: `anon` of memory.stat; None: it was not measured."""
    memory = pod.memory
    if memory is None or memory.shmem_bytes is None:
        return None
    anon = memory.inactive_anon_bytes + memory.active_anon_bytes + memory.unevictable_bytes
    return max(anon - memory.shmem_bytes, 0)


def is_judged(each: KatalystPod, settings: RssOveruseSettings) -> bool:
    """Tell whether what a pod uses is compared with what it requests: its `shmem` has to be measured then."""
    terms = each.pod.terms
    if each.level not in ("reclaimed_cores", "shared_cores") or terms.native_memory_request_bytes is None:
        return False
    return settings.is_on and all(terms.labels.get(key) == value for key, value in pairs(settings.labels).items())


def _asked(each: KatalystPod, rss_bytes: int, settings: RssOveruseSettings) -> EvictAsked | None:
    terms = each.pod.terms
    request_bytes = terms.native_memory_request_bytes
    assert request_bytes is not None  # it is judged
    try:
        ratio = rss_overuse_ratio(terms.annotations) or settings.factor
    except ConfigError:
        return None  # for safety, as in Katalyst
    if rss_bytes <= ratio * request_bytes:
        return None
    rss, request = format_bytes(rss_bytes), format_bytes(request_bytes)
    return EvictAsked(each.pod.uid, f"it has {rss} resident, more than {ratio:g} times its request of {request}")
