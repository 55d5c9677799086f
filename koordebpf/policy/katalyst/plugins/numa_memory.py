"""Eviction for the memory of single NUMA nodes: free pages below their watermarks, for how many rounds. Pure.

Source: katalyst-core pkg/agent/evictionmanager/plugin/memory/numa_pressure.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import msgspec

from koordebpf.policy.katalyst.plugin import Grace, InnerPlugin, Looked, Seen, coming_back
from koordebpf.policy.katalyst.plugins.ranking import Action, ranked
from koordebpf.policy.katalyst.pods import KatalystPod
from koordebpf.state.katalyst.measured import NumaMemory, Threshold, TopPods
from koordebpf.state.measured import NotNegative
from koordebpf.units import GIB, MIB, PAGE_BYTES, format_bytes

SCOPE = "NumaMemory"
_GUARD, _GAP, _RESERVE = 256 * MIB // PAGE_BYTES, GIB // PAGE_BYTES, 4 * GIB // PAGE_BYTES
_MIN_TIMES = 2  # before what is far below the watermark counts twice


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

    def look(self, seen: Seen, state: NumaMemoryState, settings: NumaMemorySettings) -> Looked[NumaMemoryState]:
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
    return Threshold("hard", SCOPE, float(low), float(free))


def _held_on(numa: NumaMemory) -> Callable[[KatalystPod], int | None]:
    return lambda each: numa.pods.get(each.pod.uid)


def _has_share(numa: NumaMemory, each: KatalystPod, settings: NumaMemorySettings) -> bool:
    held = numa.pods.get(each.pod.uid)
    return held is not None and numa.total_bytes > 0 and held >= settings.victim_min_ratio * numa.total_bytes
