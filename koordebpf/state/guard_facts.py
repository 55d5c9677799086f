"""What the guards look at, as one value."""

from __future__ import annotations

from typing import Literal

import msgspec

from koordebpf.units import NS_PER_S

LOSS_WINDOW_NS = 10 * NS_PER_S  # lost records close a guard for this long


class GuardFacts(msgspec.Struct, frozen=True):
    """What the guards look at.

    `pods_synced_ns` None: no view of pods yet. `records` and `lost_records` count within the last
    `LOSS_WINDOW_NS` at most. `clock_jump_ns` is how far CLOCK_BOOTTIME − CLOCK_MONOTONIC moved since the last rescan; a
    stepped wall clock moves neither and does no harm.
    """

    now_ns: int
    source: Literal["api", "kubelet", "file"]
    pods_synced_ns: int | None
    source_problem: str | None = None  # the source cannot be read now
    records: int = 0
    lost_records: int = 0
    clock_jump_ns: int = 0
    running_pods: int = 0
    running_pods_without_cgroup: int = 0
    useless_evictions: int = 0  # in a row
    useless_ns: int | None = None  # when the last of them was judged
