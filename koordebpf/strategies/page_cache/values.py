"""What BEPageCacheSuppress is set by, and what is measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from koordebpf.units import MIB, NS_PER_S

Percent = Annotated[int, msgspec.Meta(ge=1, le=100)]
Span = Annotated[int, msgspec.Meta(ge=NS_PER_S, le=3600 * NS_PER_S)]


class PageCacheSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When page cache of best-effort pods is limited, how fast, and when that ends.

    `refault_rate`     of a latency-sensitive pod, in pages a second; from so many on. Why 64: a rotating disk reads
                       hardly more, and a pod that waits for one refaults no faster.
    `step_percent`     of a pod's page cache is taken in one second. Why 25: 400 MiB are 64 after 7 s.
    `step_bytes`       from all pods together in one second at most. Why 128 MiB: the agent's loop waits for it where
                       the kernel reclaims in the write, before Linux 6.16 and on cgroup v1.
    `floor_bytes`      of a pod's page cache stay. Why 64 MiB: its programs and its read-ahead.
    `trial_ns`         for so long limits are tried. They are lifted where they do not help then. Why 10 s: steps of a
                       quarter have taken most of it, and a file of 100 MiB has come back.
    `gain_percent`     they help where refaults are so much fewer, or so much of what was refaulted stays in memory.
                       Why 25: less is within what a calm pod varies by.
    `rest_ns`          after a trial that failed nothing is limited for so long. Why 1 min: a trial costs best-effort
                       pods their page cache.
    `hold_ns`          a limit stays for so long after the last refaults, and is then raised step by step. Why 1 min:
                       raised sooner, it is lowered again while the same files are read.
    `pod_stall_ratio`  a best-effort pod that stalls for so much more of the time than before it was limited has its
                       limit raised, where it refaults more, too, or has less page cache than it may. Why 0.5:
                       it is best-effort, and still to make progress.
    `pod_refault_rate` the same of one that refaults twice as many of the pages it would have kept with more memory,
                       and so many a second more. Why 25600: it reads 100 MiB again each second.
    `v1`               on cgroup v1, which has no memory.high. softLimit: the kernel takes from best-effort pods first
                       where the machine is short. limit: as memory.high, by memory.limit_in_bytes. none: nothing. Why
                       softLimit: a pod that allocates faster than its limit follows is killed by the kernel.
    """

    refault_rate: Annotated[int, msgspec.Meta(ge=1)] = 64
    step_percent: Percent = 25
    step_bytes: Annotated[int, msgspec.Meta(ge=MIB)] = 128 * MIB
    floor_bytes: Annotated[int, msgspec.Meta(ge=MIB)] = 64 * MIB
    trial_ns: Span = 10 * NS_PER_S
    gain_percent: Percent = 25
    rest_ns: Span = 60 * NS_PER_S
    hold_ns: Span = 60 * NS_PER_S
    pod_stall_ratio: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    pod_refault_rate: Annotated[int, msgspec.Meta(ge=1)] = 25600
    v1: Literal["softLimit", "limit", "none"] = "softLimit"


class CachePod(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One best-effort pod. Bytes; counts since its cgroup was made, children included.

    Shape:   `path` is below the mount; `file_bytes` are the file LRU lists, without shmem. `activated_pages` are those
             that it refaulted and would have kept with twice the memory, workingset_activate_file; None: cgroup v1.
             `stalled_us` is the line `some` of memory.pressure; None: cgroup v1, or no pressure accounting.
    Source:  memory.stat; cgroup v2 memory.current, v1 memory.usage_in_bytes.
    """

    uid: str
    path: str
    usage_bytes: int
    file_bytes: int
    activated_pages: int | None = None
    stalled_us: int | None = None


class SensitivePod(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One latency-sensitive pod: workingset_refault_file of memory.stat, in pages, and its file LRU lists in bytes."""

    refaulted_pages: int
    file_bytes: int


class PageCacheMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All of it at one moment; a round without it keeps what was written.

    `sensitive`  latency-sensitive pods, by UID.
    `files`      of those that can limit page cache, the ones that a pod's directory has here.
    """

    at_ns: int
    pods: tuple[CachePod, ...] = ()
    sensitive: Mapping[str, SensitivePod] = {}
    files: tuple[str, ...] = ()
