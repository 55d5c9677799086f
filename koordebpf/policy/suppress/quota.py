"""Policy cfsQuota: how much CPU time best-effort pods may use in each period."""

from __future__ import annotations

import msgspec

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.reconcile.values import CgroupWrite
from koordebpf.state.cpu.measured import BeQuota

MIN_QUOTA_US = 2000  # Why: koordlet's least; the kernel's is 1000
_GROWTH_RATIO = 0.1  # of the node's capacity in one step, koordlet's
_BYPASS_RATIO = 0.01  # smaller changes are left, koordlet's


class QuotaChoice(msgspec.Struct, frozen=True):
    """The quota that the best-effort directory is to have, and whether it is more than it has now. Microseconds."""

    quota_us: int
    is_growth: bool


def choose_quota(now: BeQuota, be_millicpu: int, capacity_millicpu: int, *, may_grow: bool) -> QuotaChoice:
    """Return the quota for an amount, in the period that is set; Koordinator takes 100 ms for granted.

    Never under 2000 µs, nor more than the node has. Less at once; more only where `may_grow`, and at most a tenth of
    the node at a time. What changes by less than a hundredth of the node stays as it is. Without a quota now, the first
    one is written whole.

    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpusuppress/cpu_suppress.go, adjustByCfsQuota.
    """
    cores = -(-capacity_millicpu // 1000)  # Quantity.Value() rounds up to whole CPUs
    whole_us = cores * now.period_us
    wanted = max(min(be_millicpu * now.period_us // 1000, whole_us), MIN_QUOTA_US)
    if now.quota_us is None:
        return QuotaChoice(wanted, is_growth=False)
    if abs(wanted - now.quota_us) < whole_us * _BYPASS_RATIO and wanted != MIN_QUOTA_US:
        return QuotaChoice(max(now.quota_us, MIN_QUOTA_US), is_growth=False)
    if wanted > now.quota_us:
        if not may_grow:
            return QuotaChoice(max(now.quota_us, MIN_QUOTA_US), is_growth=False)
        wanted = min(wanted, now.quota_us + int(whole_us * _GROWTH_RATIO))
        return QuotaChoice(max(wanted, MIN_QUOTA_US), is_growth=True)
    return QuotaChoice(wanted, is_growth=False)


def quota_write(path: str, quota_us: int | None) -> CgroupWrite:
    """Return the value for the best-effort directory; None: no limit. Its burst is left alone."""
    return CgroupWrite(path, CgroupFile.CPU_QUOTA, quota_us)
