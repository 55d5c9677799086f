"""How much latency-sensitive pods stall for the node's shortage, and since when: the window of the stall net. Pure.

A stall at a limit of the pod's own never counts. Where it cannot be separated, or the kernel does not say when all
tasks of a pod wait at once, only bounds are known; decisions use the lower one.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koordebpf.state.measured import StallParts
from koordebpf.state.stalls.sample import StallSample
from koordebpf.state.stalls.windows import own_limit_ns
from koordebpf.units import NS_PER_MS, NS_PER_S

LONGEST_NS = 125 * NS_PER_S  # Why: the longest `eviction.stall.seconds`, and a few samples more
_SPACING_NS = 900 * NS_PER_MS  # Why: every look each second is kept, and none of the faster ones between
_CALM_RATIO = 0.01  # Why: the least `eviction.stall.fullPercent`; what is less ends every window


class StalledPod(msgspec.Struct, frozen=True):
    """What was measured of one latency-sensitive pod that stalled. Shares 0 to 1, of the last 10 s.

    `full_ratio` None: the kernel does not say when all of its tasks wait. `is_derived`: the shares are made of the
    timed stalls, else they are those of memory.pressure, which holds every wait. `meets_high`: it was reclaimed for
    a memory.high of its own, which no stall record tells apart.
    """

    name: str
    stall: StallParts
    some_ratio: float
    full_ratio: float | None
    is_derived: bool
    meets_high: bool = False


def full_stall_bounds(pod: StalledPod, *, is_whole: bool) -> tuple[float, float]:
    """Return the least and the most of the time in which the whole pod waits for the node's memory.

    The most: no longer than all tasks waited, and no longer than any task waited for the node. The least: of the time
    in which all waited, what limits of its own cost all tasks together is taken away.
    """
    stall, window_ns = pod.stall, max(pod.stall.window_ns, 1)
    own_ns = own_limit_ns(stall)
    shortage = min((stall.total_ns - own_ns) / window_ns, 1.0)
    waited = min(pod.full_ratio or 0.0, 1.0)
    # What is derived is the `full` of one container at least: another one may wait for longer.
    longest = min(pod.some_ratio if pod.full_ratio is None or pod.is_derived else waited, 1.0)
    # Refaults that no program times are in memory.pressure all the same.
    misses_some = not is_whole and not pod.is_derived
    most = longest if misses_some else min(longest, shortage)
    meets_limit = bool(own_ns or stall.limit_count)
    if pod.full_ratio is None or pod.meets_high or (misses_some and meets_limit):
        return 0.0, most
    return min(max(waited - own_ns / window_ns, 0.0), shortage, most), most


def stall_sample(now_ns: int, pods: Iterable[StalledPod], *, is_whole: bool) -> StallSample:
    """Return the look at `now_ns`; `pods` are the latency-sensitive ones that stalled in the last 10 s."""
    least, most = (0.0, ""), (0.0, "")
    for pod in pods:
        low, high = full_stall_bounds(pod, is_whole=is_whole)
        least = max(least, (low, pod.name))
        most = max(most, (high, pod.name))
    return StallSample(now_ns, least[0], most[0], least[1] if least[0] else "", most[1] if most[0] else "", is_whole)


def extended(window: tuple[StallSample, ...], sample: StallSample) -> tuple[StallSample, ...]:
    """Return the window with one more look: the newest last, 139 at most.

    Nothing before a calm moment counts any more, so that a node without stalls keeps one sample.
    """
    if sample.at_most_ratio < _CALM_RATIO:
        return (sample,)
    if window and sample.at_ns - window[-1].at_ns < _SPACING_NS:
        return window
    return (*(each for each in window if sample.at_ns - each.at_ns <= LONGEST_NS), sample)
