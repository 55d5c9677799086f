"""Whether a CPU quota is more than what kubelet writes for a limit. Pure."""

from __future__ import annotations

from koordebpf.kernel.cgroup.files import MIN_QUOTA_US

_STEP_MILLICPU = 10  # systemd has quotas in whole percents of a CPU: runc rounds up


def is_above_limit(quota_us: int, period_us: int, limit_millicpu: int) -> bool:
    """Return whether it is above the quota of that limit, as kubelet, runc and systemd round it.

    >>> [is_above_limit(each, 100_000, 123) for each in (12_300, 13_000, 13_001)]
    [False, False, True]
    """
    rounded_millicpu = -(-limit_millicpu // _STEP_MILLICPU) * _STEP_MILLICPU
    return quota_us > max(rounded_millicpu * period_us // 1000, MIN_QUOTA_US)
