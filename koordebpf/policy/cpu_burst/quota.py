"""The next quota of one container, by koordlet's state machine. Pure."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
from msgspec.structs import replace

from koordebpf.kernel.cgroup.files import MIN_QUOTA_US
from koordebpf.policy.cpu_burst.limiter import is_allowed
from koordebpf.policy.cpu_burst.room import NodeState
from koordebpf.policy.cpu_burst.settings import BurstSettings
from koordebpf.policy.cpu_burst.state import ContainerBurst, level_of
from koordebpf.slo.strategies.cpu_burst import CPUBurstStrategy
from koordebpf.state.cpu_burst.measured import BurstContainer
from koordebpf.units import NS_PER_S

Operation = Literal["up", "down", "reset", "remain"]

_LOWER_EVERY_NS = NS_PER_S * 9 // 10  # Why: koordlet's interval is 1 s, and a round may come a little early
LEAVE_NS = 60 * NS_PER_S  # Why: who writes quotas beside kubelet does so in minutes


class Round(msgspec.Struct, frozen=True):
    """What all containers of a round are judged by.

    `cpus`: the most that a quota may come to. `ratio`: by which CPUNormalization keeps quotas below limits; None: it
    does not.
    """

    now_ns: int
    node: NodeState
    cpus: int
    settings: BurstSettings
    ratio: float | None = None

    def limit_us(self, limit_millicpu: int, period_us: int) -> int:
        """Return the quota that stands for a limit."""
        limit_us = limit_millicpu * period_us // 1000
        return max(limit_us if self.ratio is None else math.ceil(limit_us / self.ratio), MIN_QUOTA_US)


class Judged(msgspec.Struct, frozen=True):
    """One container: what is remembered, the most that it may have, and whether it would be raised if throttled."""

    burst: ContainerBurst
    ceiling_us: int
    may_rise: bool


def judge(
    measured: BurstContainer,
    limit_millicpu: int,
    before: ContainerBurst | None,
    strategy: CPUBurstStrategy,
    now: Round,
    *,
    is_pod_foreign: bool = False,
) -> Judged:
    """Return the next quota of a container.

    Args:
        measured: the container.
        limit_millicpu: its limit by its pod's spec.
        before: as it was left; None: it is new.
        strategy: of its pod.
        now: the round.
        is_pod_foreign: another process wrote the quota of its pod.
    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpuburst/cpu_burst.go.
    """
    burst = _seen(measured, now.limit_us(limit_millicpu, measured.period_us), before, now.now_ns, is_pod_foreign)
    used = limit_millicpu if measured.used_millicpu is None else measured.used_millicpu
    is_in_time, tokens = is_allowed(burst.tokens, strategy, used * 100 // limit_millicpu, now.now_ns, measured.id)
    if measured.is_throttled:
        burst = replace(burst, throttled_ns=now.now_ns)
    burst = replace(burst, tokens=tokens)
    ceiling = _ceiling_us(burst, strategy, now.cpus)
    if strategy.policy not in ("auto", "cfsQuotaBurstOnly"):
        return Judged(_stepped(burst, "reset", ceiling, now), ceiling, may_rise=False)
    is_left = burst.left_until_ns > now.now_ns
    may_rise = is_in_time and not is_left and burst.level.wanted_us < ceiling and _has_room(measured, now)
    operation: Operation = "remain"
    if not is_in_time:
        operation = "down"
    elif measured.is_throttled and may_rise:
        operation = "up"
    elif (now.node == "overload" and not _is_starved(measured, now.settings)) or _is_calm(burst, now):
        operation = "down"
    return Judged(_stepped(burst, operation, ceiling, now), ceiling, may_rise=may_rise)


# What a container is judged from: while there is no burst, what its file holds is its own.
def _seen(
    measured: BurstContainer, limit_us: int, before: ContainerBurst | None, now_ns: int, is_pod_foreign: bool
) -> ContainerBurst:
    held = measured.quota_us
    fresh = ContainerBurst(level_of(held), measured.period_us, limit_us)
    if before is None:
        return fresh
    is_foreign = before.level.is_foreign(held)
    if (before.period_us, before.limit_us) != (measured.period_us, limit_us):
        level = (
            before.level.left(held if is_foreign else before.level.own_us) if before.level.is_raised else fresh.level
        )
        return replace(fresh, level=level, tokens=before.tokens, left_until_ns=before.left_until_ns)
    if is_foreign or is_pod_foreign:
        own_us = before.level.own_us if before.level.is_raised and not is_foreign else held
        return replace(before, level=before.level.left(own_us), left_until_ns=now_ns + LEAVE_NS)
    return replace(before, level=before.level.seen(held))


def _ceiling_us(burst: ContainerBurst, strategy: CPUBurstStrategy, cpus: int) -> int:
    own, percent = burst.level.own_us, strategy.cfsQuotaBurstPercent or 100
    return max(min(min(own, burst.limit_us) * percent // 100, cpus * burst.period_us), own)


def _has_room(measured: BurstContainer, now: Round) -> bool:
    return now.node == "idle" or (now.node != "unknown" and _is_starved(measured, now.settings))


def _is_starved(measured: BurstContainer, settings: BurstSettings) -> bool:
    ratio = measured.throttled_ratio
    return bool(settings.starved_percent) and ratio is not None and ratio * 100 >= settings.starved_percent


def _is_calm(burst: ContainerBurst, now: Round) -> bool:
    after_s = now.settings.return_after_s
    return bool(after_s) and now.now_ns - max(burst.throttled_ns, burst.stepped_ns) >= after_s * NS_PER_S


def _stepped(burst: ContainerBurst, operation: Operation, ceiling_us: int, now: Round) -> ContainerBurst:
    level, settings = burst.level, now.settings
    since_ns = now.now_ns - burst.stepped_ns
    wanted = level.wanted_us
    match operation:
        case "up" if not burst.stepped_ns or since_ns >= burst.period_us * 1000:
            wanted = wanted * settings.raise_percent // 100
        case "down" if since_ns >= _LOWER_EVERY_NS:
            wanted = wanted * settings.lower_percent // 100
        case "reset":
            wanted = level.own_us
    wanted = min(max(wanted, level.own_us), ceiling_us)
    if wanted == level.wanted_us:
        return burst
    return replace(burst, level=replace(level, wanted_us=wanted), stepped_ns=now.now_ns)
