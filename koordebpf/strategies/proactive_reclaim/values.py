"""What proactive reclaim is set by, and what is measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from koordebpf.units import MIB

NO_RECLAIM_V1 = "cgroup v1 has no memory.reclaim: strategies.proactiveReclaim.softLimits is weaker"


class ReclaimSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much is taken from a pod, and when nothing is.

    `label`            pods whose label of this name is "true" are trimmed as best-effort ones are; "": no others.
                       Why "": what a pod's owner writes should not begin anything by itself.
    `pod_stall_ratio`  the share of time that a pod may stall for memory; nearer to it less is taken. Why 0.001: the
                       0.1 % of senpai, at which applications there showed no effect.
    `sensitive_stall_ratio` where a latency-sensitive pod stalls for a larger share, nothing is taken from any pod.
                       Why 0.001: the same line for those that must not notice it at all.
    `step_percent`     of what could be reclaimed from a pod is taken in one interval of 6 s at most; 0: nothing. Why 1:
                       senpai's max_probe; an idle pod of 1 GiB is trimmed to a half within 7 minutes.
    `floor_bytes`      of what could be reclaimed stays. Why 16 MiB: the text of programs is in it.
    `least_free_swap_percent` with less free swap no anonymous memory is swapped out for it. Why 50: the other half is
                       for shortages.
    `most_zram_percent` of what is stored in zram it may hold in memory; with more no anonymous memory is swapped out.
                       Why 50: the rest is what is won.
    `soft_limits`      on cgroup v1, which has no memory.reclaim, pods get memory.soft_limit_in_bytes: what they hold
                       beside page cache, and the floor. Why off: it acts only where the machine is short.
    """

    label: str = ""
    pod_stall_ratio: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.001
    sensitive_stall_ratio: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.001
    step_percent: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.0
    floor_bytes: Annotated[int, msgspec.Meta(ge=0)] = 16 * MIB
    least_free_swap_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 50
    most_zram_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 50
    soft_limits: bool = False


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
