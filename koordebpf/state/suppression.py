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
