"""What is read for BEPageCacheSuppress each second: refaults of latency-sensitive pods, page cache of the others."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


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
