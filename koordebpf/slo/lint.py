"""What is in force of a strategy although it cannot be meant so, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from koordebpf.slo.manager.webhook import strategy_problems
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy

# What any other word counts as, in koordlet and here.
_TAKEN_FOR: Mapping[str, str] = {"cpuSuppressPolicy": "cpuset", "cpuEvictPolicy": "evictByRealLimit"}


def strategy_doubts(strategy: ResourceThresholdStrategy, place: str) -> Iterator[str]:
    """Yield what the webhook would refuse, and a minimum of suppression that leaves nothing to suppress.

    Args:
        strategy: as merged.
        place: where it is from.
    """
    for problem in strategy_problems(strategy, place):
        word = _TAKEN_FOR.get(problem.path.rpartition(".")[2])
        yield f"{problem}; {word or 'it'} is in force all the same, as in koordlet"
    if strategy.cpuSuppressPolicy == "cpuIdle":
        yield f"{place}.cpuSuppressPolicy: Koordinator has no cpuIdle: it is suppress.policy of the agents' settings"
    threshold, least = strategy.cpuSuppressThresholdPercent, strategy.cpuSuppressMinPercent
    if threshold is not None and least is not None and least > threshold:
        yield (
            f"{place}.cpuSuppressMinPercent: {least}: must not be more than cpuSuppressThresholdPercent ({threshold}): "
            "best-effort pods are held to it whatever the others use"
        )
