"""What an operator may set about the ladder."""

from __future__ import annotations

import enum

import msgspec

from koordebpf.units import NS_PER_S


class Rung(enum.Enum):
    """What can be done about a pod, from the mildest on; in this order, whatever is configured."""

    BRAKE = "brake"  # memory.high at what it uses now; cgroup v1: its cpu.cfs_quota_us
    RECLAIM = "reclaim"  # memory.reclaim
    FREEZE = "freeze"
    EVICT = "evict"
    KILL = "kill"


class LadderSettings(msgspec.Struct, frozen=True):
    """Which rungs are tried before the next one, and when a rung has done enough.

    `rungs`            those that are used. Why none: every one changes what a pod can do, so they must be asked for
                       it. With none, victims are evicted at once.
    `settle_ns`        a rung is judged so long after it started. Why: memory.high and memory.reclaim work while the
                       pod allocates; a second is what PSI's windows and ours need to show it.
    `enough_ratio`     share of the need that a rung must have released to be left alone for another `settle_ns`; with
                       less the next one is climbed. Why: at half of it the next judgement finds the need covered.
    `stall_fall_ratio` share by which the stalls of latency-sensitive pods must have fallen for the same. Why: as above.
    `calm_ns`          a rung is undone once the shortage has been over for so long. Why: kubelet waits 5 minutes before
                       it believes in the end of a pressure; a brake that is needed again costs a second, not a pod.
    `kill_wait_ns`     what was evicted and still holds its memory is killed so much later. Why: the default of
                       terminationGracePeriodSeconds.
    `freeze_max_ns`    a pod is thawed after this long in any case. Why: its liveness probes fail three times in 30 s.
    `brake_percent`    memory.high of a braked pod, of what it uses. Why: below 100 its next pages are its own old ones.
    `quota_percent`    cgroup v1, which has no memory.high: the braked pod's share of one CPU. Why: it can still answer
                       a signal, and allocates a tenth as fast as with a whole CPU.
    """

    rungs: frozenset[Rung] = frozenset()
    settle_ns: int = 1 * NS_PER_S
    enough_ratio: float = 0.5
    stall_fall_ratio: float = 0.5
    calm_ns: int = 30 * NS_PER_S
    kill_wait_ns: int = 30 * NS_PER_S
    freeze_max_ns: int = 20 * NS_PER_S
    brake_percent: int = 95
    quota_percent: int = 10
