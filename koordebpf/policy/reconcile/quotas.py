"""Quotas below one that is wanted, on v1: the kernel takes none that is more than its parent's. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.kernel.cgroup.files import MIN_QUOTA_US, CgroupFile, Value
from koordebpf.policy.reconcile.values import FileKey


class OwnQuota(msgspec.Struct, frozen=True, gc=False):
    """The quota that a cgroup has of its own account, and its period. Microseconds; None: no limit."""

    quota_us: int | None
    period_us: int


def fitting_quotas(wanted: Mapping[FileKey, Value], own: Mapping[str, OwnQuota]) -> dict[FileKey, Value]:
    """Return what the cgroups below the wanted quotas are to hold: their own, cut to what is wanted above them.

    One that is wanted itself is among them only where it is more than what is wanted above it. `own` has them by path,
    and those above them for the period. A pod with a limit of four CPUs below a best-effort directory of two has two
    for as long; koordlet's write of the two is refused there. Nothing is cut on v2, where the less of both counts.

    Source:  kernel/sched/core.c, tg_cfs_schedulable_down.
    """
    fitting: dict[FileKey, Value] = {}
    for path, quota in own.items():
        key = (path, CgroupFile.CPU_QUOTA)
        above = _nearest_wanted(path, wanted)
        if above is None or above not in own:
            continue
        value = wanted.get(key, quota.quota_us)
        limit = wanted[above, CgroupFile.CPU_QUOTA]
        if isinstance(limit, int) and isinstance(value, int):
            cut = limit * quota.period_us // own[above].period_us
            value = min(value, max(cut, MIN_QUOTA_US))
        if key not in wanted or value != wanted[key]:
            fitting[key] = value
    return fitting


def _nearest_wanted(path: str, wanted: Mapping[FileKey, Value]) -> str | None:
    while path:
        path = path.rpartition("/")[0]
        if (path, CgroupFile.CPU_QUOTA) in wanted:
            return path
    return None
