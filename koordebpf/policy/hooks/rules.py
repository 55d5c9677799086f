"""The rules that hooks go by, from the node as it is seen: NodeSLO, annotations, share pools, gates."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from koordebpf.policy.hooks.cpu_normalization import normalization_ratio
from koordebpf.policy.hooks.settings import HookSettings
from koordebpf.policy.hooks.values import HOOKS, HookRules
from koordebpf.slo.pods.share_pools import SharePool
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.hooks.measured import HookView


def hook_rules(
    view: HookView,
    strategy: ResourceThresholdStrategy | None,
    gates: Mapping[str, bool],
    settings: HookSettings = HookSettings(),  # noqa: B008 - frozen
) -> tuple[HookRules, tuple[str, ...]]:
    """Return the rules, and sentences on what of the node's objects cannot be read.

    Args:
        view: of the node.
        strategy: resourceUsedThresholdWithBE in force.
        gates: feature gates.
        settings: of the operator.
    """
    problems = list(view.pools.problems)
    by_quota = strategy is not None and bool(strategy.enable) and strategy.cpuSuppressPolicy == "cfsQuota"
    rules = HookRules(
        hooks=frozenset(name for name in HOOKS if gates.get(name)),
        is_quota_off=by_quota,
        normalization_ratio=normalization_ratio(view.annotations, problems),
        shared_pools=_without(view.pools.shared, view.bound),
        be_pools=_without(view.pools.best_effort, view.bound_lse),
        system_cpus=frozenset(view.pools.system),
        kubelet_policy=view.pools.kubelet_policy,
        online=frozenset(view.measured.online) or None,
        qos=view.measured.qos,
        places_best_effort=gates.get("BECPUManager", False),
        unsets_quota=settings.unset_quota,
        idles_best_effort=settings.idle_best_effort,
        least_oom_score_adj=settings.least_oom_score_adj,
        has_bvt=view.measured.has_bvt,
        has_idle=view.measured.has_idle,
    )
    return rules, tuple(problems)


def _without(pools: tuple[SharePool, ...] | None, cpus: frozenset[int]) -> tuple[SharePool, ...] | None:
    if pools is None or not cpus:
        return pools
    return tuple(replace(each, cpus=tuple(cpu for cpu in each.cpus if cpu not in cpus)) for each in pools)
