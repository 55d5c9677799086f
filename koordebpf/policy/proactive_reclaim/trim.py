"""How much is taken from one pod: a step that grows while nothing stalls, and is halved when something does. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.policy.proactive_reclaim.settings import ReclaimSettings
from koordebpf.state.proactive_reclaim import SwapState, TrimmedPod
from koordebpf.units import MIB, NS_PER_S, NS_PER_US, PAGE_BYTES

_REST_NS = 30 * NS_PER_S  # Why: five intervals, in which a working set has come back
_LEAST_SCALE = 1 / 16
_GROWTH = 1.25  # Why: from the least step to the whole one in 75 s
STEP = "step"
# Why so much is taken from a pod, or nothing: a short stable word, and for people.
WHYS: Mapping[str, str] = {
    STEP: "a step",
    "first_look": "it is looked at for the first time",
    "hurt": "it stalled or its memory came back",
    "stalls": "it stalls by itself",
    "rests": "it rests",
    "floor": "nothing is left to take",
    "held": "a latency-sensitive pod stalls",
    "no_swap": "swap is not to be used",
    "zram": "zram holds too much of what is swapped out",
    "swap_full": "too little swap is free",
}
_JUDGED_BYTES = 8 * MIB  # that zram stores. Why: an empty one holds its own tables, and would never be used
_LEAST_BYTES = 16 * PAGE_BYTES  # less is not worth a system call


class PodTrim(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What is remembered of one pod.

    `scale`       of the step, 1 at most.
    `asked_bytes` at the last look; `rests_until_ns`: nothing is taken before.
    `begin_…`     counters at the last look.
    """

    at_ns: int
    begin_stalled_us: int
    begin_refaulted_pages: int
    scale: float = _LEAST_SCALE
    asked_bytes: int = 0
    rests_until_ns: int = 0
    hurts: int = 0  # how often it was halved


class Trim(msgspec.Struct, frozen=True):
    """What is taken from one pod now, and `why`, one of `WHYS`. `is_hurt`: what was taken before hurt it."""

    memory: PodTrim
    size_bytes: int = 0
    why: str = STEP
    is_hurt: bool = False


def usable_swap_bytes(swap: SwapState, settings: ReclaimSettings) -> int:
    """Return how much may be swapped out now; 0: nothing."""
    return 0 if why_no_swap(swap, settings) else max(swap.free_bytes - _kept_bytes(swap, settings), 0)


def why_no_swap(swap: SwapState, settings: ReclaimSettings) -> str | None:
    """Return why nothing may be swapped out, one of `WHYS`; None: something may, or this node has no swap."""
    is_judged = swap.zram_stored_bytes >= _JUDGED_BYTES
    if is_judged and 100 * swap.zram_held_bytes > settings.most_zram_percent * swap.zram_stored_bytes:
        return "zram"
    return "swap_full" if swap.total_bytes and swap.free_bytes <= _kept_bytes(swap, settings) else None


def _kept_bytes(swap: SwapState, settings: ReclaimSettings) -> int:
    return swap.total_bytes * settings.least_free_swap_percent // 100


def trim(
    pod: TrimmedPod,
    before: PodTrim | None,
    swap_bytes: int,
    now_ns: int,
    settings: ReclaimSettings,
    no_swap: str | None = None,
) -> Trim:
    """Return what is taken from a pod at this look.

    The first look takes nothing: how the pod stalls is not known. A pod that stalled for more than its share, or of
    which half of what was taken came back, rests for 30 s and is asked for half as much then. Otherwise the step is
    senpai's: (1 − stalled / line)² of `step_percent`, here of what can be reclaimed.

    Args:
        pod: as it is.
        before: what is remembered of it.
        swap_bytes: how much may be swapped out.
        now_ns: of the measurement.
        settings: of the operator.
        no_swap: why nothing may be swapped out, of `why_no_swap`.
    """
    if before is None or pod.stalled_us < before.begin_stalled_us or now_ns <= before.at_ns:
        return Trim(PodTrim(now_ns, pod.stalled_us, pod.refaulted_pages), why="first_look")
    stalled = (pod.stalled_us - before.begin_stalled_us) * NS_PER_US / (now_ns - before.at_ns)
    came_back_bytes = max(pod.refaulted_pages - before.begin_refaulted_pages, 0) * PAGE_BYTES
    looked = PodTrim(
        now_ns,
        pod.stalled_us,
        pod.refaulted_pages,
        scale=before.scale,
        rests_until_ns=before.rests_until_ns,
        hurts=before.hurts,
    )
    is_hurt = stalled >= settings.pod_stall_ratio or (
        before.asked_bytes > 0 and came_back_bytes >= before.asked_bytes // 2
    )
    if is_hurt and before.asked_bytes:
        eased = msgspec.structs.replace(
            looked,
            scale=max(before.scale / 2, _LEAST_SCALE),
            rests_until_ns=now_ns + _REST_NS,
            hurts=before.hurts + 1,
        )
        return Trim(eased, why="hurt", is_hurt=True)
    if is_hurt:
        return Trim(looked, why="stalls")
    if now_ns < before.rests_until_ns:
        return Trim(looked, why="rests")
    scale = min(before.scale * _GROWTH, 1.0)
    nearness = 1 - stalled / settings.pod_stall_ratio
    size_bytes = _step_bytes(pod.file_bytes + min(pod.anon_bytes, swap_bytes), scale, nearness, settings)
    if size_bytes < _LEAST_BYTES:
        swapped_bytes = _step_bytes(pod.file_bytes + pod.anon_bytes, scale, nearness, settings)
        why = no_swap if no_swap and swapped_bytes >= _LEAST_BYTES else "floor"
        return Trim(msgspec.structs.replace(looked, scale=scale), why=why)
    return Trim(msgspec.structs.replace(looked, scale=scale, asked_bytes=size_bytes), size_bytes)


# In whole pages; the floor stays.
def _step_bytes(reclaimable_bytes: int, scale: float, nearness: float, settings: ReclaimSettings) -> int:
    room_bytes = max(reclaimable_bytes - settings.floor_bytes, 0)
    wanted = int(reclaimable_bytes * settings.step_percent / 100 * scale * nearness * nearness)
    return min(wanted, room_bytes) // PAGE_BYTES * PAGE_BYTES
