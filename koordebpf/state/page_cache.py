"""What is read for BEPageCacheSuppress each second: refaults of latency-sensitive pods, page cache of the others."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class CachePod(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One best-effort pod. Bytes; counts since its cgroup was made, children included.

    Shape:   `path` is below the mount; `file_bytes` are the file LRU lists, without shmem. `stalled_us` is the line
             `some` of memory.pressure; None: cgroup v1, or no pressure accounting.
    Source:  memory.stat; cgroup v2 memory.current, v1 memory.usage_in_bytes.
    """

    uid: str
    path: str
    usage_bytes: int
    file_bytes: int
    refaulted_pages: int
    stalled_us: int | None = None


class PageCacheMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All of it at one moment; a round without it keeps what was written.

    `sensitive_pages`  workingset_refault_file of latency-sensitive pods, by UID.
    `files`            of those that can limit page cache, the ones that a pod's directory has here.
    """

    at_ns: int
    pods: tuple[CachePod, ...] = ()
    sensitive_pages: Mapping[str, int] = {}
    files: tuple[str, ...] = ()
