"""CPUNormalization: smaller quotas on CPUs that are faster than those that limits are written for.

Source: koordinator pkg/koordlet/runtimehooks/hooks/cpunormalization; apis/extension/cpu_normalization.go.
"""

from __future__ import annotations

from koordebpf.policy.cpu_normalization import CPU_NORMALIZATION, RATIO_ANNOTATION
from koordebpf.state.pods.hook_pods import HookContainer, HookPod
from koordebpf.strategies.hooks.batch_resource import limit_of, quota_of
from koordebpf.strategies.hooks.values import HookRules, Setting

_SOURCE = f"limits cpu / {RATIO_ANNOTATION}"


def normalized_pod(pod: HookPod, rules: HookRules) -> Setting[int] | None:
    """Return the quota of the pod's own level; None: one of its containers has no limit, or there is no ratio."""
    if rules.normalization_ratio is None or all(each.kind == "init" for each in pod.containers):
        return None
    limit = limit_of(pod, lambda each: each.cpu_limit_millicpu)
    if limit <= 0:
        return None
    return Setting(quota_of(limit, rules.normalization_ratio), CPU_NORMALIZATION, _SOURCE)


def normalized_container(container: HookContainer, rules: HookRules) -> Setting[int] | None:
    """Return the quota of a container; None: it has no limit, or there is no ratio."""
    if rules.normalization_ratio is None or container.cpu_limit_millicpu <= 0:
        return None
    quota_us = quota_of(container.cpu_limit_millicpu, rules.normalization_ratio)
    return Setting(quota_us, CPU_NORMALIZATION, f"containers[{container.name}] {_SOURCE}")
