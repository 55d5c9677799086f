"""State of CPU suppression that is carried from one decision to the next."""

from __future__ import annotations

from typing import Literal

import msgspec

# using: the values are suppression's. recovered: they were seen to be what they would be without it. unknown: nothing
# was written since the agent started; an earlier agent may have left something.
Use = Literal["unknown", "using", "recovered"]


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
    """What an agent leaves to its successor: its state, and when it ended, by the wall clock since the epoch."""

    state: SuppressState
    left_s: float


def adopted(kept: KeptSuppression | None, now_s: float, keep_s: float) -> SuppressState:
    """Return the state to start from: the predecessor's for `keep_s` seconds, after that the unknown one.

    From the unknown one the first decision rewrites everything: what a policy wants, or the recovery. A clock that
    was set back counts as too long. Moments on CLOCK_MONOTONIC are not carried over: a reboot lies between, perhaps.
    """
    if kept is None or not 0 <= now_s - kept.left_s <= keep_s:
        return SuppressState()
    return SuppressState(cpuset=kept.state.cpuset, quota=kept.state.quota, idle=kept.state.idle)
