"""For how long a container may be above its limit: a bucket of tokens for each. Pure."""

from __future__ import annotations

import zlib

import msgspec

from koordebpf.slo.strategies.cpu_burst import CPUBurstStrategy
from koordebpf.units import NS_PER_S

_FULL = 100  # percent of the limit
_SAVES_BELOW = 60  # percent of the limit


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """A bucket. Its unit is a percent of the limit for one second; below 0 it was overdrawn."""

    capacity: int
    left: float
    judged_ns: int


def is_allowed(
    tokens: Tokens | None, strategy: CPUBurstStrategy, used_percent: int, now_ns: int, container_id: str
) -> tuple[bool, Tokens | None]:
    """Tell whether a container may be above its limit now, and return its bucket; None: it needs none.

    A bucket begins with up to half of its capacity, which depends on the container alone: containers that start
    together do not all end their bursts together.

    Args:
        tokens: as they were left; None: it had none.
        strategy: of the container's pod.
        used_percent: of its limit.
        now_ns: CLOCK_MONOTONIC.
        container_id: of the container.
    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpuburst, burstLimiter.
    """
    period_s, percent = strategy.cfsQuotaBurstPeriodSeconds, strategy.cfsQuotaBurstPercent
    if period_s is None or period_s < 0:
        return True, None
    if percent is None or percent < _FULL:
        return False, None
    capacity = period_s * (percent - _FULL)
    if tokens is None or tokens.capacity != capacity:
        share = zlib.crc32(container_id.encode()) / (1 << 32) / 2
        tokens = Tokens(capacity, capacity * share, now_ns)
    seconds = (now_ns - tokens.judged_ns) / NS_PER_S
    left = tokens.left
    if used_percent >= _FULL or used_percent < _SAVES_BELOW:
        left += (_FULL - used_percent) * seconds
    tokens = Tokens(capacity, min(max(left, -capacity), capacity), now_ns)
    return tokens.left > 0, tokens
