"""What the hooks give a pod and each of its containers: one function for the reconciler and for a container runtime.

Where several hooks are for one value: the quota is BatchResource's for BE, CPUSetAllocator's for pods with CPUs of
their own, CPUNormalization's for the rest; no pod is of two kinds. A best-effort pod that is idle has no weight.
"""

from __future__ import annotations

import msgspec

from koordebpf.policy.cpu_normalization import CPU_NORMALIZATION, RATIO_ANNOTATION, is_normalized
from koordebpf.state.pods.hook_pods import HookContainer, HookPod
from koordebpf.strategies.hooks.batch_resource import batch_container, batch_pod, is_batch, limit_of, quota_of
from koordebpf.strategies.hooks.core_sched import core_sched_group
from koordebpf.strategies.hooks.core_sched import pod_idle as core_sched_idle
from koordebpf.strategies.hooks.cpuset_allocator import container_cpus, status_of, unset_quota
from koordebpf.strategies.hooks.group_identity import pod_identity, pod_idle
from koordebpf.strategies.hooks.oom_score_adj import container_score
from koordebpf.strategies.hooks.values import (
    BATCH_RESOURCE,
    CORE_SCHED,
    CPUSET_ALLOCATOR,
    GROUP_IDENTITY,
    NOTHING,
    OOM_SCORE_ADJ,
    UNLIMITED,
    Adjustment,
    HookRules,
    Setting,
)

_SOURCE = f"limits cpu / {RATIO_ANNOTATION}"
__all__ = [
    "UNLIMITED",
    "Adjustment",
    "HookContainer",
    "HookPod",
    "HookRules",
    "Setting",
    "container_adjustment",
    "pod_adjustment",
]


def normalized_pod(pod: HookPod, rules: HookRules) -> Setting[int] | None:
    """Return the quota of the pod's own level; None: it has no limit, or there is no ratio."""
    if rules.normalization_ratio is None or all(each.kind == "init" for each in pod.containers):
        return None
    limit = pod.cpu_limit_millicpu or limit_of(pod, lambda each: each.cpu_limit_millicpu)
    if limit <= 0:
        return None
    return Setting(quota_of(limit, rules.normalization_ratio), CPU_NORMALIZATION, _SOURCE)


def normalized_container(container: HookContainer, rules: HookRules) -> Setting[int] | None:
    """Return the quota of a container; None: it has no limit, or there is no ratio."""
    if rules.normalization_ratio is None or container.cpu_limit_millicpu <= 0:
        return None
    quota_us = quota_of(container.cpu_limit_millicpu, rules.normalization_ratio)
    return Setting(quota_us, CPU_NORMALIZATION, f"containers[{container.name}] {_SOURCE}")


def pod_adjustment(pod: HookPod, rules: HookRules) -> Adjustment:
    """Return what the pod's own level gets. The same pod and rules give the same.

    Cost:    5 µs.
    """
    hooks, problems = rules.hooks, list(pod.problems)
    found = batch_pod(pod, rules) if BATCH_RESOURCE in hooks and is_batch(pod) else NOTHING
    changes: dict[str, object] = {}
    if (quota := _pod_quota(pod, rules, problems)) is not None and found.cfs_quota_us is None:
        changes["cfs_quota_us"] = quota
    if GROUP_IDENTITY in hooks:
        if (identity := pod_identity(pod, rules, problems)) is not None:
            changes["bvt_warp_ns"] = identity
        if (idle := pod_idle(pod, rules)) is not None:
            changes |= {"cpu_idle": idle, "cpu_shares": None}
    if CORE_SCHED in hooks and (idle := core_sched_idle(pod, rules)) is not None:
        changes |= {"cpu_idle": idle, "cpu_shares": None}
    if problems:
        changes["problems"] = tuple(f"pod {pod.key}: {each}" for each in problems)
    return msgspec.structs.replace(found, **changes) if changes else found


def container_adjustment(pod: HookPod, container: HookContainer, rules: HookRules) -> Adjustment:
    """Return what a container's level gets. The same pod, container and rules give the same.

    Cost:    5 µs.
    """
    hooks, problems = rules.hooks, list[str]()
    found = batch_container(container, rules) if BATCH_RESOURCE in hooks and is_batch(pod) else NOTHING
    changes: dict[str, object] = {}
    # Of an annotation that cannot be read the pod's own level has the problem too.
    has_status = not hooks.isdisjoint((CPUSET_ALLOCATOR, CPU_NORMALIZATION))
    status = status_of(pod, problems if CPUSET_ALLOCATOR in hooks else []) if has_status else None
    if CPUSET_ALLOCATOR in hooks:
        if (cpus := container_cpus(pod, status, rules, problems)) is not None:
            changes["cpuset_cpus"] = cpus
        if found.cfs_quota_us is None and (quota := unset_quota(status, rules)) is not None:
            changes["cfs_quota_us"] = quota
    if CPU_NORMALIZATION in hooks and found.cfs_quota_us is None and "cfs_quota_us" not in changes:
        quota = normalized_container(container, rules) if is_normalized(pod, status) else None
        if quota is not None:
            changes["cfs_quota_us"] = quota
    if (
        OOM_SCORE_ADJ in hooks
        and (score := container_score(pod, container.name, rules.least_oom_score_adj, problems)) is not None
    ):
        changes["oom_score_adj"] = score
    if CORE_SCHED in hooks and (group := core_sched_group(pod, rules)) is not None:
        changes["core_sched_group"] = group
    if problems:
        changes["problems"] = tuple(f"pod {pod.key}: {each}" for each in problems)
    return msgspec.structs.replace(found, **changes) if changes else found


def _pod_quota(pod: HookPod, rules: HookRules, problems: list[str]) -> Setting[int] | None:
    wanted = {CPUSET_ALLOCATOR, CPU_NORMALIZATION} & rules.hooks
    if not wanted:
        return None
    status = status_of(pod, problems)
    quota = unset_quota(status, rules) if CPUSET_ALLOCATOR in wanted else None
    if quota is None and CPU_NORMALIZATION in wanted and is_normalized(pod, status):
        quota = normalized_pod(pod, rules)
    return quota
