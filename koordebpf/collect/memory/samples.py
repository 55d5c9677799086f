"""Every memory cgroup of the node at one moment: by one scan where the backend has one, else file by file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.errors import CgroupGone, SupportError
from koordebpf.events.layout import decode_memcgs
from koordebpf.events.records import MemcgSample
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory
from koordebpf.units import PAGE_BYTES


def memcg_samples(watch: NodeWatch) -> list[MemcgSample]:
    """Return them with their children in every number, parents first; swap is 0 where files are read.

    Cost:    0.1 ms for 330 cgroups by a scan, and 2 ms to decode and add up; 80 µs for each by files.
    """
    if not watch.signals.can_scan:
        return list(_by_files(watch))
    with watch.signals.scan() as rows:
        return _with_children(list(decode_memcgs(rows, PAGE_BYTES)))


def _by_files(watch: NodeWatch) -> Iterator[MemcgSample]:
    hierarchy = watch.scope.hierarchy
    paths = {path: cgroup_id for cgroup_id in watch.index if (path := watch.index.path(cgroup_id)) is not None}
    for path, cgroup_id in sorted(paths.items()):
        try:
            with CgroupMemory(hierarchy.mount_point / path, hierarchy.version) as files:
                stat, limit, events = files.read(), files.limit_bytes(), files.events()
        except (CgroupGone, SupportError):  # SupportError: on v2 the controller is not enabled there
            continue
        yield MemcgSample(
            cgroup_id,
            paths.get(path.rpartition("/")[0], 0) if path else 0,
            stat.usage_bytes,
            limit,
            stat.inactive_anon_bytes,
            stat.active_anon_bytes,
            stat.inactive_file_bytes,
            stat.active_file_bytes,
            stat.unevictable_bytes,
            0,
            *events,
        )


# The LRU sizes of a scan are each cgroup's own: added up from the lowest to the root, which comes first.
def _with_children(samples: Sequence[MemcgSample]) -> list[MemcgSample]:
    sums = {each.cgroup_id: list(_lru(each)) for each in samples}
    for each in reversed(samples):
        if above := sums.get(each.parent_id):
            above[:] = [one + other for one, other in zip(above, sums[each.cgroup_id], strict=True)]
    return [msgspec.structs.replace(each, **dict(zip(_LRU, sums[each.cgroup_id], strict=True))) for each in samples]


_LRU = ("inactive_anon_bytes", "active_anon_bytes", "inactive_file_bytes", "active_file_bytes", "unevictable_bytes")


def _lru(each: MemcgSample) -> tuple[int, ...]:
    return tuple(getattr(each, name) for name in _LRU)
