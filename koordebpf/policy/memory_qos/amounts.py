"""Bytes of the files: what is protected, where reclaim begins, and how much page cache a pod may have.

Source: koordinator pkg/koordlet/qosmanager/plugins/cgreconcile, calculatePodResources, calculateContainerResources.
"""

from __future__ import annotations

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.quantity import quantity_bytes
from koordebpf.slo.strategies.resource_qos import MemoryQOS
from koordebpf.units import PAGE_BYTES


def protected_bytes(request_bytes: int, fields: MemoryQOS) -> tuple[int | None, int | None]:
    """Return memory.min and memory.low; None: the field is not set. low is at least min, unless it is 0.

    >>> protected_bytes(1000, MemoryQOS(minLimitPercent=50, lowLimitPercent=20))
    (500, 500)
    """
    low, least = _percent(request_bytes, fields.lowLimitPercent), _percent(request_bytes, fields.minLimitPercent)
    if low and least is not None:
        low = max(low, least)
    return least, low


def high_bytes(request_bytes: int, limit_bytes: int, percent: int, least_bytes: int) -> int:
    """Return memory.high: that percent of the way from the request to the limit, in whole pages; at least memory.min.

    >>> high_bytes(0, 1 << 20, 50, 0)
    524288
    """
    found = request_bytes + max(limit_bytes - request_bytes, 0) * percent // 100
    return max(found - found % PAGE_BYTES, least_bytes)


class PageCacheLimit(msgspec.Struct, frozen=True, gc=False):
    """How much page cache a pod may have. `is_sync`: what exceeds it is reclaimed by who reads."""

    n_bytes: int
    is_sync: bool


def page_cache_limit(fields: MemoryQOS, limit_bytes: int, problems: list[str]) -> PageCacheLimit | None:
    """Return the limit that the fields set; None: none."""
    size = page_cache_bytes(fields, limit_bytes, problems)
    if not size or not is_page_cache_on(fields, size):
        return None
    return PageCacheLimit(size, bool(fields.pageCacheLimitSync or fields.pageCacheReclaimSync))


def is_page_cache_on(fields: MemoryQOS, size: int) -> bool:
    """Tell whether a limit of this size is on."""
    if fields.pageCacheEnable is not None:
        return fields.pageCacheEnable and size > 0
    return size > 0 if fields.pageCacheLimitEnable is None else bool(fields.pageCacheLimitEnable) and size > 0


def page_cache_bytes(fields: MemoryQOS, limit_bytes: int, problems: list[str]) -> int | None:
    """Return how much page cache a pod may have; 0: as much as it likes. None: the fields do not say.

    A size is at most the pod's limit; a percentage is of that limit, and 0 without one.
    """
    if fields.pageCacheLimitSize is not None:
        try:
            size = quantity_bytes(fields.pageCacheLimitSize, "pageCacheLimitSize")
        except ConfigError as error:
            problems.append(f"{error}; page cache is not limited")
            return None
        return min(size, limit_bytes or (1 << 53))
    if fields.pageCacheLimitPercent is not None:
        return limit_bytes * fields.pageCacheLimitPercent // 100
    return None


def _percent(amount: int, percent: int | None) -> int | None:
    return None if percent is None else amount * percent // 100
