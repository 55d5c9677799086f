"""BatchResource: weight, quota and memory limit of pods that ask for batch resources.

To kubelet they are BestEffort: two shares, no limit.

Source: koordinator pkg/koordlet/runtimehooks/hooks/batchresource.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from koordebpf.quantity import Quantity
from koordebpf.slo.pods.extended_resources import BATCH_CPU, BATCH_MEMORY, MAX_BYTES
from koordebpf.state.pods.hook_pods import HookContainer, HookPod
from koordebpf.state.pods.resources import largest_moment
from koordebpf.strategies.hooks.values import (
    BATCH_RESOURCE,
    MIN_QUOTA_US,
    PERIOD_US,
    UNLIMITED,
    Adjustment,
    HookRules,
    Setting,
)

MIN_SHARES, MAX_SHARES = 2, 1 << 18  # kernel/sched/sched.h


def is_batch(pod: HookPod) -> bool:
    """Tell whether the hook is for this pod: its label says BE, and a container asks for extended resources."""
    return pod.koord_qos == "BE" and any(each.batch is not None for each in pod.containers)


def batch_pod(pod: HookPod, rules: HookRules) -> Adjustment:
    """Return what the pod's own level gets: what its containers may have together, at the most at any moment.

    Where a container has limits that are not known, those of the pod are left alone.
    """
    shares = _setting(shares_of(_most_at_once(pod, _cpu_request)), f"{BATCH_CPU} requests")
    is_known = all(each.batch is not None or each.is_limit_known for each in pod.containers)
    return Adjustment(
        cpu_shares=shares,
        cfs_quota_us=_quota(limit_of(pod, _cpu_limit), rules) if is_known or rules.is_quota_off else None,
        memory_limit_bytes=_memory(limit_of(pod, _memory_limit)) if is_known else None,
    )


def batch_container(container: HookContainer, rules: HookRules) -> Adjustment:
    """Return what a container's level gets; nothing where it asks for no extended resource."""
    batch = container.batch
    if batch is None:
        return Adjustment()
    path = f"containers[{container.name}]"
    return Adjustment(
        cpu_shares=_setting(shares_of(batch.cpu_request_millicpu), f"{path} requests {BATCH_CPU}"),
        cfs_quota_us=_quota(batch.cpu_limit_millicpu, rules, path),
        memory_limit_bytes=_memory(batch.memory_limit_bytes, path),
    )


def without_lifts(found: Adjustment, container: HookContainer) -> Adjustment:
    """Return an adjustment without limits of this hook that are above the container's native ones.

    For who knows no spec: extended resources are then those of an annotation, which a tenant may write.
    """
    changes: dict[str, None] = {}
    known_us = container.cpu_limit_millicpu * PERIOD_US // 1000
    if _lifts(found.cfs_quota_us, known_us):
        changes["cfs_quota_us"] = None
    if _lifts(found.memory_limit_bytes, container.memory_limit_bytes):
        changes["memory_limit_bytes"] = None
    return msgspec.structs.replace(found, **changes) if changes else found


def _lifts(limit: Setting[int] | None, known: int) -> bool:
    return limit is not None and limit.hook == BATCH_RESOURCE and known > 0 and not 0 < limit.value <= known


def shares_of(millicpu: int) -> int:
    """Return the shares for a request.

    >>> shares_of(500), shares_of(0)
    (512, 2)
    """
    return min(max(millicpu * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def quota_of(millicpu: int, ratio: float | None = None) -> int:
    """Return the quota for a limit on CPUs that are `ratio` times as fast as those it is written for.

    >>> quota_of(1500), quota_of(1500, 1.2), quota_of(1), quota_of(0)
    (150000, 125000, 1000, -1)
    """
    if millicpu <= 0:
        return UNLIMITED
    quota_us = max(millicpu * PERIOD_US // 1000, MIN_QUOTA_US)
    return quota_us if ratio is None else max(math.ceil(quota_us / ratio), MIN_QUOTA_US)


def limit_of(pod: HookPod, limit: Callable[[HookContainer], int]) -> int:
    """Return what the containers of a pod may have at any moment; 0: one of them has no limit, so the pod has none."""
    is_limited = all(limit(each) > 0 for each in pod.containers)
    return _most_at_once(pod, limit) if is_limited else 0


def _setting(value: int, source: str) -> Setting[int]:
    return Setting(value, BATCH_RESOURCE, source)


def _quota(millicpu: int, rules: HookRules, path: str = "") -> Setting[int]:
    source = f"{path} limits {BATCH_CPU}".strip()
    if rules.is_quota_off:
        return _setting(UNLIMITED, "NodeSLO cpuSuppressPolicy cfsQuota")
    if millicpu <= 0:
        return _setting(UNLIMITED, f"{source}: none")
    ratio = rules.normalization_ratio
    return _setting(quota_of(millicpu, ratio), source if ratio is None else f"{source} / cpu-normalization-ratio")


def _memory(limit_bytes: int, path: str = "") -> Setting[int]:
    source = f"{path} limits {BATCH_MEMORY}".strip()
    return _setting(limit_bytes, source) if limit_bytes > 0 else _setting(UNLIMITED, f"{source}: none")


def _most_at_once(pod: HookPod, amount: Callable[[HookContainer], int]) -> int:
    found = largest_moment((Quantity(amount(each)), each.kind) for each in pod.containers)
    return min(found.unscaled, MAX_BYTES)


# A container that asks for no extended resource counts by its native ones: a side container that was injected.
def _cpu_request(container: HookContainer) -> int:
    return container.batch.cpu_request_millicpu if container.batch else container.cpu_request_millicpu


def _cpu_limit(container: HookContainer) -> int:
    return container.batch.cpu_limit_millicpu if container.batch else container.cpu_limit_millicpu


def _memory_limit(container: HookContainer) -> int:
    return container.batch.memory_limit_bytes if container.batch else container.memory_limit_bytes
