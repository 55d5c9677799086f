"""What is read for proactive reclaim each few seconds: pods that may be trimmed, stalls of the others, swap. Values."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

NO_RECLAIM_V1 = "cgroup v1 has no memory.reclaim: strategies.proactiveReclaim.softLimits is weaker"


class TrimmedPod(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One pod that may be trimmed. Bytes; counts since its cgroup was made, children included.

    Shape:   `path` is below the mount; `stalled_us` is the line `some` of memory.pressure, `refaulted_pages` are of
             anonymous memory and of files.
    Source:  memory.stat, on cgroup v2 memory.pressure.
    """

    uid: str
    cgroup_id: int
    path: str
    usage_bytes: int
    file_bytes: int
    anon_bytes: int
    stalled_us: int
    refaulted_pages: int


class SwapState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Swap of the machine. Bytes.

    `zram_held_bytes` is what zram devices hold in memory for `zram_stored_bytes`; 0 of both: there is none.
    """

    total_bytes: int = 0
    free_bytes: int = 0
    zram_stored_bytes: int = 0
    zram_held_bytes: int = 0


class ReclaimMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All of it at one moment; a round without it decides nothing of proactive reclaim.

    `sensitive_us`   memory.pressure, `some`, of the pods that must not stall, by UID.
    `lacks`          why no pod can be trimmed on this node; "": they can.
    `soft_limits`    cgroup v1, where pods get soft limits: nothing is known of stalls.
    `takes_swappiness` memory.reclaim takes swappiness= (since Linux 6.11): file memory alone can be asked for.
    """

    at_ns: int
    pods: tuple[TrimmedPod, ...] = ()
    sensitive_us: Mapping[str, int] = {}
    swap: SwapState = SwapState()
    lacks: str = ""
    takes_swappiness: bool = False
    soft_limits: bool = False
