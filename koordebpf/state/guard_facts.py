"""What the guards look at, as one value."""

from __future__ import annotations

from typing import Literal

import msgspec


class GuardFacts(msgspec.Struct, frozen=True):
    """What the guards look at.

    `pods_synced_ns` None: no view of pods yet. `records` and `lost_records` count since the last rescan.
    `clock_jump_ns` is how far CLOCK_BOOTTIME − CLOCK_MONOTONIC moved since then; a stepped wall clock moves neither and
    does no harm.
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
