"""What BECPUSuppress is set by beside Koordinator's strategy, what is measured for it, and what it remembers."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from koordebpf.policy.reconcile import DesiredState
from koordebpf.units import NS_PER_MS, NS_PER_S

# using: the values are suppression's. recovered: they were seen to be what they would be without it. unknown: nothing
# was written since the agent started; an earlier agent may have left something.
Use = Literal["unknown", "using", "recovered"]
Policy = Literal["cpuset", "cfsQuota", "cpuIdle"]
WakeSource = Literal["pressure", "scheduler", "usage"]


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


class WakeSettings(msgspec.Struct, frozen=True):
    """What wakes suppression before its second is over.

    `pressure`     CPU pressure: triggers on the latency-sensitive side of a cgroup v2 node, else on the machine. Why
                   true: they cost nothing while no task waits, and a look each window while one does.
    `scheduler`    tracing of how long latency-sensitive tasks wait for a CPU. Why false: its programs run with every
                   wake-up and switch of the machine.
    `usage`        looks at the CPU counters of the best-effort directory and of the one above it, 20 times a second
                   while best-effort pods run, else twice. Why true: pressure triggers have windows of 2 s on many
                   nodes, and a look costs two reads.
    `budget_ratio` of the node's CPUs that scheduler tracing may take: above it, it looks at fewer wake-ups, and rests
                   where that is not enough. Why 1 %: what suppression saves is a multiple of it.
    `wait_ns`      how long one latency-sensitive task must have waited for a CPU after it woke; with pressure, any of
                   them within 50 ms. Why 2 ms: less than the slice that a best-effort task gets (3 ms on 6.x).
    `burst_window_ns` between the two looks at what latency-sensitive pods use. Why 30 ms: where the first window had
                   too little of the burst, the second one and the write are still within 100 ms of it; shorter ones
                   take every timer for a burst.
    `rise_ratio`   of the node's CPUs that latency-sensitive pods must use more than the last round left them. Why 5 %:
                   half of a growth step; what is below waits for the next second.
    `rest_ns`      so many rounds as `rounds` are woken in such a time, growth waits twice as long after one. Why 1 s:
                   koordlet's pace.
    `rounds`       see `rest_ns`. Why 4: what a burst needs shows step by step, as best-effort pods make room; with two
                   the rest of it waited for the next second.
    """

    pressure: bool = True
    scheduler: bool = False
    usage: bool = True
    budget_ratio: Annotated[float, Meta(gt=0, le=1)] = 0.01
    wait_ns: Annotated[int, Meta(ge=NS_PER_MS // 10, le=10 * NS_PER_S)] = 2 * NS_PER_MS
    burst_window_ns: Annotated[int, Meta(ge=10 * NS_PER_MS, le=10 * NS_PER_S)] = 30 * NS_PER_MS
    rise_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.05
    rest_ns: Annotated[int, Meta(ge=0)] = NS_PER_S
    rounds: Annotated[int, Meta(ge=1, le=20)] = 4


class SuppressMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a round that a burst has started before its time: why, in words."""

    woken_by: str


class MemoryHold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CPU that best-effort pods are kept from because their growth made others stall for memory."""

    cap_millicpu: int
    since_ns: int
    stepped_ns: int
    ratio_at_start: float


class SuppressState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of each value, and when it last grew. `is_ruled`: a strategy was known since the start."""

    cpuset: Use = "unknown"
    quota: Use = "unknown"
    idle: Use = "unknown"
    cpuset_grown_ns: int | None = None
    quota_grown_ns: int | None = None
    memory_hold: MemoryHold | None = None
    memory_rest_until_ns: int | None = None
    is_ruled: bool = False


class KeptSuppression(msgspec.Struct, frozen=True):
    """What an agent leaves to its successor.

    `left_s` is when it ended, by the wall clock since the epoch; `desired` is what files held then, None: of an agent
    that did not say it.
    """

    state: SuppressState
    left_s: float
    desired: DesiredState | None = None

    def is_fresh(self, now_s: float, keep_s: float) -> bool:
        """Tell whether it was left in the last `keep_s` seconds. A clock that was set back counts as too long."""
        return 0 <= now_s - self.left_s <= keep_s


def adopted(kept: KeptSuppression | None, now_s: float, keep_s: float) -> SuppressState:
    """Return the state to start from: the predecessor's for `keep_s` seconds, after that the unknown one.

    From the unknown one the first decision rewrites everything: what a policy wants, or the recovery. Moments on
    CLOCK_MONOTONIC are not carried over: a reboot lies between, perhaps.
    """
    if kept is None or not kept.is_fresh(now_s, keep_s):
        return SuppressState()
    return SuppressState(cpuset=kept.state.cpuset, quota=kept.state.quota, idle=kept.state.idle)
