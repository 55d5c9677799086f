"""What an operator may set about suppression beside Koordinator's strategy."""

from __future__ import annotations

from typing import Literal

import msgspec

from koordebpf.units import NS_PER_S

Policy = Literal["cpuset", "cfsQuota", "cpuIdle"]


class MemoryPressureSettings(msgspec.Struct, frozen=True):
    """When stalls for memory take CPU from best-effort pods.

    `is_on`        whether stalls for memory take CPU from best-effort pods. Why off: Koordinator has no such rule.
    `start_ratio`  share of time that latency-sensitive pods stalled on account of best-effort pods' growth. Why: PSI
                   alarms of memory are commonly set at 5 to 10 %.
    `step_ratio`   what is taken of the CPU that best-effort pods use, once a second. Why: a pod that allocates with one
                   thread slows down with its CPU; three steps more than halve it.
    `judge_ns`     the stalls must have fallen by `effect_ratio` this long after the first step, else the hold ends; it
                   ends, too, when no pod stalled for so long. Why: the last one to allocate must have felt the step;
                   the ledger's window must have passed, and is waited for where it is longer.
    `effect_ratio` see `judge_ns`. Why: what falls by less may have fallen by itself.
    `rest_ns`      how long nothing is tried after a hold that had no effect. Why: what waits for its own page cache
                   will wait again in the next second.
    """

    is_on: bool = False
    start_ratio: float = 0.05
    step_ratio: float = 0.25
    judge_ns: int = 10 * NS_PER_S
    effect_ratio: float = 0.5
    rest_ns: int = 60 * NS_PER_S


class SuppressSettings(msgspec.Struct, frozen=True):
    """How best-effort pods are held, how fast they get CPU back, and what stays when the agent ends.

    `policy`          in place of cpuSuppressPolicy; cpuIdle can only be set here, Koordinator does not know it. Why
                      none: the NodeSLO says it.
    `grow_every_ns`   growth is limited for each such time, however often the loop wakes. Why: koordlet's step is for
                      its interval of 1 s.
    `hysteresis_ratio` of the node's capacity that the amount must lie above the CPUs in use before one more is given.
                      Why: koordlet's quota policy ignores changes below 1 %; its cpuset policy has no such thing, and
                      its users saw the set change with every sample.
    `at_exit`         what becomes of the values where no other agent stands by, which continues from them at once.
                      restore: as if there had been no suppression; keep: outside of a container they stay for a
                      successor, and a process waits for one and else restores them. Why restore: an agent that was
                      taken off a node must not limit any pod there.
    `keep_s`          how long such a process waits; a successor continues from values no older than that. Why:
                      a service is updated in that time.
    `memory_pressure` whether stalls for memory take CPU.
    """

    policy: Policy | None = None
    grow_every_ns: int = 1 * NS_PER_S
    hysteresis_ratio: float = 0.01
    at_exit: Literal["keep", "restore"] = "restore"
    keep_s: float = 300.0
    memory_pressure: MemoryPressureSettings = MemoryPressureSettings()
